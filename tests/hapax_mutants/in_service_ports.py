"""Bugs that let a process do another one's work."""

from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, unit

_NAMES: Final = unit("core/access/test_services.py")
_PORTS: Final = unit("runtime/test_service_tls.py")
_PROOFS: Final = unit("kafka/test_node_proofs.py")
_STORE: Final = unit("codec/test_store_rights.py")
_PUBLIC: Final = unit("runtime/test_public_logins.py")
_FILES: Final = unit("runtime/test_tls.py")

MUTANTS: Final = (
    Mutant(
        "service ports: what the table of callers does not name, every role may call", "docs/tls.md",
        "core/access/services.py",
        "return role in CALLERS.get(method, ())", "return role in CALLERS.get(method, ROLES)",
        (_NAMES,),
    ),
    Mutant(
        "service ports: every process may call every method", "docs/tls.md", "runtime/rpc_frames.py",
        "        if self._caller is not None and not may_call(self._caller.role, method):\n",
        "        if False:\n",
        (_PORTS,),
    ),
    Mutant(
        "service ports: another process than the dialled one is called", "docs/tls.md", "runtime/service_tls.py",
        "        if not name.stands_for(self._wanted):\n",
        "        if False:\n",
        (_PORTS,),
    ),
    Mutant(
        "service ports: a caller is who it says", "docs/tls.md", "runtime/rpc_frames.py",
        "                self._peer = proven(self._peer, self._caller)\n",
        "                pass\n",
        (_PORTS,),
    ),
    Mutant(
        "service ports: a process of another cluster is let in", "docs/tls.md", "runtime/service_tls.py",
        "        if name.cluster_id != self.cluster_id:\n",
        "        if False:\n",
        (_PORTS,),
    ),
    Mutant(
        "service ports: names in certificates are not looked at", "docs/tls.md", "runtime/tls_connection.py",
        "            self._contexts.check(self.certificate)\n",
        "            pass\n",
        (_PORTS,),
    ),
    Mutant(
        "service ports: a copied proof counts on every connection", "rule 17", "kafka/node_proofs.py",
        "    if secured:\n",
        "    if False:\n",
        (_PROOFS,),
    ),
    Mutant(
        "service ports: a PID allocator may change the registration of broker 21", "docs/tls.md",
        "codec/store_rights.py",
        'yield f"{hundred}{tens}0", f"{hundred}{tens + 1}"', 'yield f"{hundred}{tens}0", f"{hundred}{tens + 1}0"',
        (_STORE,),
    ),
    Mutant(
        "TLS: an empty truststore stands for every public authority", "docs/tls.md", "runtime/tls.py",
        "    if not content.strip():\n",
        "    if False:\n",
        (_FILES,),
    ),
    Mutant(
        "TLS: files that raise another error end the look at all files", "docs/tls.md", "runtime/tls.py",
        "        except Exception as error:  # what reads certificates has exceptions of several libraries\n",
        "        except TlsError as error:\n",
        (_FILES,),
    ),
    Mutant(
        "service ports: a process takes over a certificate that the others refuse", "docs/tls.md", "runtime/tls.py",
        "            self._check_unchanged_names(certificates)\n            self._check_fits(certificates)\n",
        "            self._check_unchanged_names(certificates)\n",
        (_PORTS,),
    ),
    Mutant(
        "public gRPC: silent connections take all descriptors", "docs/security.md", "runtime/rpc_server.py",
        "min(_MOST_PUBLIC_CONNECTIONS, raise_descriptor_limit() // 2)", "_MOST_PUBLIC_CONNECTIONS",
        (_PUBLIC,),
    ),
    Mutant(
        "public gRPC: who has not logged in fills the memory", "docs/security.md", "runtime/rpc_server.py",
        "        \"grpc.max_receive_message_length\": _MOST_PUBLIC_BYTES,\n",
        "",
        (_PUBLIC,),
    ),
)
