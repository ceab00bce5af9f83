"""/v1/version and /v1/cluster: what this is, and how it is."""

from __future__ import annotations

from importlib import metadata
from typing import Any, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel

from hapax.admin.answers import answer
from hapax.admin.context import Context

API_VERSION: Final = "1"


class Version(BaseModel):
    name: str
    version: str
    api: str
    cluster_id: str
    model_config = {"json_schema_extra": {"examples": [
        {"name": "hapax", "version": "0.1.0", "api": "1", "cluster_id": "flights-production"}]}}


def package_version() -> str:
    try:
        return metadata.version("hapaxlog")
    except metadata.PackageNotFoundError:
        return "unknown"


def routes(context: Context) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["cluster"])
    told: dict[str, Any] = {
        "name": "hapax", "version": package_version(), "api": API_VERSION, "cluster_id": context.settings.cluster_id}

    @router.get("/version", response_model=Version)
    async def version() -> Response:
        """Which version of what this is."""
        return answer(told)

    return router
