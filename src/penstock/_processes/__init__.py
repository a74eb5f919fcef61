"""Child processes: how their parent starts, watches and ends them, how they begin, and how their exceptions travel.

`Supervisor` says how the parts work together. Names are loaded when they are first used: a program that only sends an
exception through a tensor pipe loads nothing that starts processes.
"""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock._processes._child import ChildProcess, StartMethod, check_start_method, import_ahead, uses_server
    from penstock._processes._exceptions import (
        PackedError,
        error_text,
        pack_error,
        unpack_error,
        unpack_raised,
        without_frames,
    )
    from penstock._processes._fork_server import receive_descriptors
    from penstock._processes._helper import (
        Begin,
        HelperProcess,
        MessageKind,
        OwnerGoneError,
        listen_to_owner,
        report_started,
    )
    from penstock._processes._main_module import (
        check_guard,
        has_cloudpickle,
        is_guarded,
        is_imported,
        missing,
        pickled_for_processes,
    )
    from penstock._processes._named_modules import modules_of, naming, unimportable
    from penstock._processes._patience import (
        ABANDONED_SECONDS,
        FUNCTION_SECONDS,
        PIPELINE_SECONDS,
        RestartPolicy,
    )
    from penstock._processes._seeding import (
        GlobalSeeds,
        draw_seeds,
        fixed_seeds,
        observe_seeds,
        seed_pool_process,
    )
    from penstock._processes._supervisor import Starting, Supervisor
else:
    __getattr__ = _lazy.from_modules(
        __name__,
        ABANDONED_SECONDS="penstock._processes._patience",
        Begin="penstock._processes._helper",
        ChildProcess="penstock._processes._child",
        FUNCTION_SECONDS="penstock._processes._patience",
        GlobalSeeds="penstock._processes._seeding",
        HelperProcess="penstock._processes._helper",
        MessageKind="penstock._processes._helper",
        OwnerGoneError="penstock._processes._helper",
        PIPELINE_SECONDS="penstock._processes._patience",
        PackedError="penstock._processes._exceptions",
        RestartPolicy="penstock._processes._patience",
        StartMethod="penstock._processes._child",
        Starting="penstock._processes._supervisor",
        Supervisor="penstock._processes._supervisor",
        check_guard="penstock._processes._main_module",
        check_start_method="penstock._processes._child",
        draw_seeds="penstock._processes._seeding",
        error_text="penstock._processes._exceptions",
        fixed_seeds="penstock._processes._seeding",
        has_cloudpickle="penstock._processes._main_module",
        import_ahead="penstock._processes._child",
        is_guarded="penstock._processes._main_module",
        is_imported="penstock._processes._main_module",
        listen_to_owner="penstock._processes._helper",
        missing="penstock._processes._main_module",
        modules_of="penstock._processes._named_modules",
        naming="penstock._processes._named_modules",
        observe_seeds="penstock._processes._seeding",
        pack_error="penstock._processes._exceptions",
        pickled_for_processes="penstock._processes._main_module",
        receive_descriptors="penstock._processes._fork_server",
        report_started="penstock._processes._helper",
        seed_pool_process="penstock._processes._seeding",
        unimportable="penstock._processes._named_modules",
        unpack_error="penstock._processes._exceptions",
        unpack_raised="penstock._processes._exceptions",
        uses_server="penstock._processes._child",
        without_frames="penstock._processes._exceptions",
    )

__all__ = [
    "ABANDONED_SECONDS",
    "FUNCTION_SECONDS",
    "PIPELINE_SECONDS",
    "Begin",
    "ChildProcess",
    "GlobalSeeds",
    "HelperProcess",
    "MessageKind",
    "OwnerGoneError",
    "PackedError",
    "RestartPolicy",
    "StartMethod",
    "Starting",
    "Supervisor",
    "check_guard",
    "check_start_method",
    "draw_seeds",
    "error_text",
    "fixed_seeds",
    "has_cloudpickle",
    "import_ahead",
    "is_guarded",
    "is_imported",
    "listen_to_owner",
    "missing",
    "modules_of",
    "naming",
    "observe_seeds",
    "pack_error",
    "pickled_for_processes",
    "receive_descriptors",
    "report_started",
    "seed_pool_process",
    "unimportable",
    "unpack_error",
    "unpack_raised",
    "uses_server",
    "without_frames",
]
