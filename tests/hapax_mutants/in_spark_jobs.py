"""Bugs by which two drivers of a Spark job run at a time, a run is lost, or one is started twice. Paths lead from
services/hapax to the operator."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

PLAN = unit("operator/test_plan_spark.py")
MODEL = unit("operator/test_plan_spark_model.py")
WORK = unit("operator/test_spark_work.py")
SCHEDULE = unit("operator/test_spark_schedule.py")
TEMPLATES = unit("operator/test_spark_templates.py")
RUNS = unit("operator/test_spark_runs.py")
OPERATOR = "../../operator/hapax_operator/"

MUTANTS = (
    Mutant(
        "a pod that the record does not name is let run", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        "        return self._do(Write(replace(\n            self.record, stage=STARTED, uid=made.uid, driver=made.name, fingerprint=made.fingerprint,\n            started_ms=self.now_ms)))\n",
        "        return self._do(Lift(made))\n",
        (MODEL,),
    ),
    Mutant(
        "a driver starts while executors of the former one live", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        "        others = [each for each in self.pods if each.live and each is not made]\n",
        "        others = [each for each in self.pods if each.live and each is not made and each.driver]\n",
        (PLAN,),
    ),
    Mutant(
        "a driver that was deleted by force is not waited for", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        "        if vanished_s < _VANISHED_S:\n",
        "        if False:\n",
        (MODEL,),
    ),
    Mutant(
        "a new driver starts before the former one is fenced", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        "            case FenceAll(fences):\n                return self._do(FenceIds(fences))\n",
        "            case FenceAll():\n                pass\n",
        (PLAN,),
    ),
    Mutant(
        "a record is cleared before it is copied", "docs/kubernetes.md", OPERATOR + "spark_work.py",
        "        return Clear() if known == wanted else Copy(wanted)\n",
        "        return Clear() if known else Copy(wanted)\n",
        (WORK,),
    ),
    Mutant(
        "a SparkJob acts while its producer still has a run", "docs/kubernetes.md", OPERATOR + "spark_work.py",
        "    elif producer.has_runs:\n",
        "    elif producer.spark is not None:\n",
        (WORK,),
    ),
    Mutant(
        "numbers of runs go back by a hand-over", "docs/kubernetes.md", OPERATOR + "spark_work.py",
        '        wanted["run"] = max(wanted.get("run", 0), known.get("run", 0))\n',
        "",
        (WORK,),
    ),
    Mutant(
        "two SparkJobs run under one producer", "docs/kubernetes.md", OPERATOR + "spark_work.py",
        "    elif any(each.meta.age < job.meta.age for each in rivals if each.meta.uid != job.meta.uid):\n",
        "    elif False:\n",
        (WORK,),
    ),
    Mutant(
        "the pods of a producer that was replaced are forgotten", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        "        elif self.record.pinned and self.record.pinned != resource.identity:\n",
        "        elif False:\n",
        (WORK,),
    ),
    Mutant(
        "a SparkJob ends the driver of a section that still is there", "docs/kubernetes.md", OPERATOR + "spark_work.py",
        "    if producer is not None and not hindered:\n",
        "    if producer is not None:\n",
        (WORK,),
    ),
    Mutant(
        "an upgrade restarts every Spark job", "docs/kubernetes.md", OPERATOR + "spark_resource.py",
        "            if each.name not in _NOT_OF_A_RUN and value != default:\n",
        "            if each.name not in _NOT_OF_A_RUN:\n",
        (WORK,),
    ),
    Mutant(
        "a time of a schedule has two runs", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        "                        claimed, scheduled_ms=self.due.at_ms, missed=claimed.missed + self.due.missed)\n",
        "                        claimed, missed=claimed.missed + self.due.missed)\n",
        (SCHEDULE,),
    ),
    Mutant(
        "a time that was claimed is lost where its run never began", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        "        complete = record.exit is not None and record.exit.run == record.run and record.exit.reason == COMPLETED\n",
        "        complete = record.exit is not None and record.exit.reason == COMPLETED\n",
        (SCHEDULE,),
    ),
    Mutant(
        "a run of a schedule overtakes the one before", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        '        return "Replaced" if late and self.spark.schedule.policy == REPLACE else ""\n',
        '        return "Replaced" if late else ""\n',
        (SCHEDULE,),
    ),
    Mutant(
        "a template lifts the gate", "docs/kubernetes.md", OPERATOR + "spark_pods.py",
        "    body = merged(merged(merged(usual, given_in(spark.driver_template)), _common(work, spark, \"driver\")), needed)\n    # A template may neither lift the gate nor let anything start the driver a second time.\n    body[\"spec\"][\"schedulingGates\"] = needed[\"spec\"][\"schedulingGates\"]\n",
        "    body = merged(merged(merged(usual, needed), _common(work, spark, \"driver\")), given_in(spark.driver_template))\n",
        (TEMPLATES,),
    ),
    Mutant(
        "conf switches authentication off", "docs/kubernetes.md", OPERATOR + "spark_pods.py",
        "{**_conf(spark), **spark.conf, **_guarded_conf(spark), **conf}",
        "{**_conf(spark), **_guarded_conf(spark), **spark.conf, **conf}",
        (TEMPLATES,),
    ),
    Mutant(
        "a job that is through when it is told to end runs again", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        '        if pod is not None and pod.phase == "Succeeded":\n',
        '        if pod is not None and pod.phase == "Succeeded" and not record.ending:\n',
        (PLAN,),
    ),
    Mutant(
        "a clock that was ahead stops a schedule", "docs/kubernetes.md", OPERATOR + "plan_spark.py",
        "        if self.due is not None and self.record.scheduled_ms > self.now_ms + _AHEAD_MS:\n",
        "        if False:\n",
        (SCHEDULE,),
    ),
    Mutant(
        "a clock that is a little behind gives a time a second run", "docs/kubernetes.md",
        OPERATOR + "plan_spark.py",
        "        if self.due is not None and self.record.scheduled_ms > self.now_ms + _AHEAD_MS:\n",
        "        if self.due is not None and self.record.scheduled_ms > self.now_ms:\n",
        (SCHEDULE,),
    ),
    Mutant(
        "a mount of a template makes the checkpoint read-only", "docs/kubernetes.md", OPERATOR + "pod_template.py",
        '_WHOLE: Final = frozenset({"env", "volumes", "volumeMounts"})\n',
        '_WHOLE: Final = frozenset({"env", "volumes"})\n',
        (TEMPLATES,),
    ),
    Mutant(
        "a job that is made again loses its secret", "docs/kubernetes.md", OPERATOR + "spark_pods.py",
        '    return f"{short_name(work.meta.ref.name)}-spark-auth-{work.meta.uid[:8]}"\n',
        '    return f"{short_name(work.meta.ref.name)}-spark-auth"\n',
        (TEMPLATES,),
    ),
    Mutant(
        "a run that was started in another cluster is not seen when its job has moved", "docs/kubernetes.md", OPERATOR + "spark_runs.py",
        "                    if each.cluster in here or each.owner in work.owners or each.uid == named]\n",
        "                    if each.cluster in here]\n",
        (RUNS,),
    ),
    Mutant(
        "a pod of a former release is taken for another cluster's", "docs/kubernetes.md", OPERATOR + "spark_runs.py",
        '            here = ("", cluster_label(self._cluster))\n',
        "            here = (cluster_label(self._cluster),)\n",
        (RUNS,),
    ),
    Mutant(
        "a driver ends because it is not told whether a SparkJob takes it over", "docs/kubernetes.md", OPERATOR + "spark_jobs.py",
        "            if refused.code != 404 or await self._api.serves(SPARK_JOBS):\n",
        "            if refused.code not in (403, 404):\n",
        (unit("operator/test_spark_jobs.py"),),
    ),
    Mutant(
        "a former run's last batch is shown as the present one's", "docs/kubernetes.md", OPERATOR + "spark_runs.py",
        "        last = self._pods.get(key, {}).get(named) or self._ended.get(named)\n",
        "        last = next(iter(self._ended.values()), None)\n",
        (RUNS,),
    ),
    Mutant(
        "a driver's deep report keeps the operator from looking after its job", "docs/kubernetes.md", OPERATOR + "spark_progress.py",
        "    except (KeyError, TypeError, RecursionError) as error:\n",
        "    except (KeyError, TypeError) as error:\n",
        (unit("operator/test_spark_pods.py"),),
    ),
)
