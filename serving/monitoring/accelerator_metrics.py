"""Metrics of the accelerator: its memory and sensors, and the runs of each signature there."""

from collections.abc import Iterator, Mapping, Sequence

from serving.base.clock import NS_PER_SECOND
from serving.core.servable import AVAILABLE, ServableId, ServableStatus
from serving.data_plane.servables import CPU_REASONS, RUN_STAGES, AcceleratorRuns
from serving.loading.autotuning import TuningState
from serving.monitoring import metric_families as families
from serving.monitoring.gpu_sensors import GpuFigures
from serving.monitoring.metric_samples import Samples, family_metrics
from serving.monitoring.monitored_parts import AcceleratedVersion, MonitoredParts

_Labels = tuple[str, str, str, str]
_Runs = Mapping[_Labels, AcceleratorRuns]


def accelerator_metrics(
    parts: MonitoredParts, statuses: Sequence[ServableStatus]
) -> Iterator[Samples]:
    """Yields the metrics of the accelerator. Without one, the families have no samples."""
    versions = {
        status.id: version
        for status in statuses
        if status.state is AVAILABLE and (version := parts.accelerated(status.id)) is not None
    }
    yield from _parameters(versions)
    runs = {
        (servable_id.name, str(servable_id.version), runs.signature, runs.device): runs
        for servable_id, version in versions.items()
        for runs in version.runs
    }
    yield from _runs(runs)
    yield _padding(runs)
    yield _stages(runs)
    yield _cpu_runs(runs)
    yield from _sides(versions)
    yield _programs(parts)
    yield _untuned(versions)
    yield _autotuning(versions)
    yield from _pinned(parts)
    yield from _memory(parts)
    yield from _sensors(parts.gpu_figures())


def _parameters(versions: Mapping[ServableId, AcceleratedVersion]) -> Iterator[Samples]:
    sizes, uploads = Samples(families.ACCELERATOR_PARAMETERS), Samples(families.ACCELERATOR_UPLOAD)
    uploaded, drops = Samples(families.ACCELERATOR_UPLOADED), Samples(families.ACCELERATOR_DROPS)
    kept = Samples(families.ACCELERATOR_KEPT)
    in_full = Samples(families.ACCELERATOR_FULL_UPLOADS)
    for servable_id, version in versions.items():
        for figures in version.uploads:
            labels = (servable_id.name, str(servable_id.version), figures.device)
            sizes.add(labels, figures.resident_bytes)
            uploads.add_total(labels, figures.upload_count, figures.upload_ns / NS_PER_SECOND)
            pinned_bytes = figures.uploaded_bytes - figures.unpinned_bytes
            uploaded.add((*labels, "pinned"), pinned_bytes)
            uploaded.add((*labels, "other"), figures.unpinned_bytes)
            drops.add(labels, figures.drop_count)
            kept.add(labels, figures.kept_bytes)
            in_full.add(labels, figures.full_count)
    yield sizes
    yield uploads
    yield uploaded
    yield drops
    yield kept
    yield in_full


def _runs(by_labels: _Runs) -> Iterator[Samples]:
    counts, rows = Samples(families.ACCELERATOR_RUNS), Samples(families.ACCELERATOR_ROWS)
    for labels, runs in by_labels.items():
        for at, size in enumerate(runs.sizes):
            counts.add((*labels, str(size)), runs.run_counts[at])
            rows.add((*labels, str(size)), runs.row_counts[at])
    yield counts
    yield rows


def _padding(by_labels: _Runs) -> Samples:
    samples = Samples(families.ACCELERATOR_PADDING_ROWS)
    for labels, runs in by_labels.items():
        samples.add(labels, runs.padding_row_count)
    return samples


def _stages(by_labels: _Runs) -> Samples:
    samples = Samples(families.ACCELERATOR_STAGE)
    for labels, runs in by_labels.items():
        for stage, ns in zip(RUN_STAGES, runs.stage_ns, strict=True):
            samples.add_total((*labels, stage), runs.timed_run_count, ns / NS_PER_SECOND)
    return samples


def _cpu_runs(by_labels: _Runs) -> Samples:
    samples = Samples(families.ACCELERATOR_CPU_RUNS)
    for labels, runs in by_labels.items():
        for reason, count in zip(CPU_REASONS, runs.cpu_run_counts, strict=True):
            samples.add((*labels, reason), count)
    return samples


def _sides(versions: Mapping[ServableId, AcceleratedVersion]) -> Iterator[Samples]:
    medians, chosen = Samples(families.ACCELERATOR_MEDIAN), Samples(families.ACCELERATOR_CHOSEN)
    for servable_id, version in versions.items():
        for signature in version.signatures:
            for size in signature.sizes:
                labels = (
                    servable_id.name,
                    str(servable_id.version),
                    signature.name,
                    str(size.rows),
                )
                chosen.add(labels, int(size.is_on_accelerator))
                for side, ns in (("cpu", size.cpu_ns), ("accelerator", size.accelerator_ns)):
                    if ns:
                        medians.add((*labels, side), ns / NS_PER_SECOND)
    yield medians
    yield chosen


def _programs(parts: MonitoredParts) -> Samples:
    samples = Samples(families.ACCELERATOR_PROGRAMS)
    for accelerator in parts.accelerators:
        state = accelerator.state()
        samples.add((accelerator.name, "compiled"), state.compiled_count)
        samples.add((accelerator.name, "cache"), state.loaded_count)
        samples.add((accelerator.name, "shared"), state.shared_count)
    return samples


def _untuned(versions: Mapping[ServableId, AcceleratedVersion]) -> Samples:
    samples = Samples(families.ACCELERATOR_UNTUNED)
    for servable_id, version in versions.items():
        for signature in version.signatures:
            if signature.rows:
                labels = (servable_id.name, str(servable_id.version), signature.name)
                samples.add(labels, len(signature.untuned_rows))
    return samples


def _autotuning(versions: Mapping[ServableId, AcceleratedVersion]) -> Samples:
    samples = Samples(families.ACCELERATOR_AUTOTUNING)
    for servable_id, version in versions.items():
        if version.tuning is None:
            continue
        for state in TuningState:
            labels = (servable_id.name, str(servable_id.version), state.value)
            samples.add(labels, int(version.tuning.state is state))
    return samples


def _pinned(parts: MonitoredParts) -> Iterator[Samples]:
    pinned, limit = Samples(families.ACCELERATOR_PINNED), Samples(families.ACCELERATOR_PINNED_LIMIT)
    for accelerator in parts.accelerators[:1]:  # all of them share it
        state = accelerator.state()
        pinned.add((), state.pinned_bytes)
        limit.add((), state.pinned_limit_bytes)
    yield pinned
    yield limit


def _memory(parts: MonitoredParts) -> Iterator[Samples]:
    used, limit = Samples(families.ACCELERATOR_USED), Samples(families.ACCELERATOR_LIMIT)
    staging = Samples(families.ACCELERATOR_STAGING)
    for accelerator in parts.accelerators:
        staging.add((accelerator.name,), accelerator.state().staging_bytes)
        memory = accelerator.memory()
        if memory is None:
            continue
        used.add((accelerator.name,), memory.used_bytes)
        if memory.limit_bytes > 0:
            limit.add((accelerator.name,), memory.limit_bytes)
    yield used
    yield limit
    yield staging


def _sensors(figures: Mapping[str, GpuFigures]) -> Iterator[Samples]:
    shown = (families.GPU_UTILIZATION, families.GPU_ENERGY, families.GPU_TEMPERATURE)
    by_device = []
    for device, seen in figures.items():
        values = zip(
            shown,
            (seen.utilization_ratio, seen.energy_joules, seen.temperature_celsius),
            strict=True,
        )
        known = {family: value for family, value in values if value is not None}
        by_device.append(((device,), known))
    yield from family_metrics(shown, by_device)
