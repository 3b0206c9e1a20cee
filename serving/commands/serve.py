"""`millpond serve`: parses the flags and runs the server."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from serving.base.absent_packages import absent_packages
from serving.base.bill_of_materials import bundled_libraries
from serving.base.clock import SystemClock
from serving.base.closed_pipe import EXIT_FAILURE, EXIT_USAGE
from serving.base.errors import FailedPrecondition, InvalidConfig, MillpondError, ResourceExhausted
from serving.base.lasting_objects import lasting_objects
from serving.base.log_line import is_for_people, log_line
from serving.base.no_threads import NO_THREAD_REMEDY, is_no_thread
from serving.base.parent_process import stop_at_eof, stops_at_stdin_eof
from serving.base.quiet_stderr import quiet_stderr
from serving.base.tensorflow_package import MINOR_VERSION, installed_package, mismatch
from serving.config.flags import help_text, parse_flags
from serving.config.lab_settings import lab_settings
from serving.config.listen_addresses import listen_addresses
from serving.config.server_config import ServerConfig, server_config
from serving.http.listeners import check_port
from serving.server import launcher
from serving.server.handed_sockets import take_handed_sockets
from serving.server.log_writer import write_at_once
from serving.server.port_reservation import PortReservation
from serving.server.starting_line import starting_line, take_unwritten_line, write_starting_line
from serving.server.supervised import open_crash_page, wait_as_standby

_STDERR = 2
# structlog imports these packages if they are installed, to draw tracebacks. A server writes plain tracebacks,
# so they are hidden from structlog: they are 80 modules, and a fifteenth of the processor time of a start.
UNUSED_PACKAGES = ("rich", "colorama")


def run(arguments: Sequence[str]) -> int:
    """Serves until SIGTERM, and returns the exit status.

    Raises InvalidConfig for wrong flags, before anything is started. If the log is JSON, a later error is
    logged there, and SystemExit is raised.
    """
    if "--help" in arguments or "-h" in arguments:
        print(help_text())
        return 0
    wait_as_standby(os.environ, _load_libraries)
    flags = parse_flags(arguments)
    if flags["version"]:
        print(_versions())
        return 0
    # The configuration is read before the exec. So a wrong command line is reported immediately, and only once.
    config = server_config(flags, lab_settings(os.environ))
    is_human = is_for_people(flags["log_format"], is_terminal=os.isatty(_STDERR))
    if flags["supervise"]:
        return _reporting(partial(_supervise, config), is_human=is_human)
    line = starting_line(
        _distribution_version("millpond"), SystemClock().wall_ns(), is_human=is_human
    )
    write_starting_line(_STDERR, line, os.environ)
    try:
        return _reporting(partial(_serve, flags, config), is_human=is_human)
    finally:
        # A later server of this process, or a child of it, begins its own log.
        take_unwritten_line(os.environ)


def _reporting(serve: Callable[..., int], *, is_human: bool) -> int:
    """Calls `serve`. If the log is JSON, writes an error as a line of the log, and raises SystemExit."""
    if is_human:
        return serve(is_human=True)
    try:
        return serve(is_human=False)
    except BrokenPipeError:
        raise
    except (MillpondError, OSError) as error:
        line = log_line(
            "serve_failed",
            f"millpond serve: {error}",
            SystemClock().wall_ns(),
            is_human=False,
            level="error",
        )
        write_at_once(_STDERR, line.encode())
        status = EXIT_USAGE if isinstance(error, InvalidConfig) else EXIT_FAILURE
        raise SystemExit(status) from None


def _supervise(config: ServerConfig, *, is_human: bool) -> int:
    # Imported here, so that a server without a supervisor starts faster.
    from serving.supervisor.supervise import supervise

    return supervise(config, is_human=is_human, write_line=partial(write_at_once, _STDERR))


def _serve(flags: Mapping[str, Any], config: ServerConfig, *, is_human: bool) -> int:
    """Serves until SIGTERM. If the allocator is not loaded yet, executes this process again first."""
    if reason := mismatch(installed_package()):
        raise FailedPrecondition(reason)
    launcher.ensure_allocator(flags["allocator"])
    if stops_at_stdin_eof(os.environ):
        stop_at_eof(sys.stdin.fileno())
    launcher.raise_descriptor_limit()
    _set_up_libraries()
    # The sockets are taken after the last exec, and before TensorFlow is loaded, which takes seconds.
    config = take_handed_sockets(config)
    check_port(config.http_host, config.rest_api_port)
    reserved_port = PortReservation.take(listen_addresses(config))
    # Only modules are imported in this block, because its objects live until the process ends. The server's
    # objects of the data plane must end before.
    with lasting_objects(), absent_packages(*UNUSED_PACKAGES):
        from serving.data_plane.plane import native_module
        from serving.server.logs import flush_logs, start_logs, write_lines
        from serving.server.native_log_lines import native_lines_as_events
        from serving.server.server import Server

    start_logs(flags["log_format"], take_unwritten_line(os.environ))
    try:
        with native_lines_as_events(is_human=is_human, write=write_lines):
            open_crash_page(native_module(), os.environ)
            return Server(config, reserved_port=reserved_port).run()
    except RuntimeError as error:
        if not is_no_thread(error):
            raise
        raise ResourceExhausted(f"the kernel grants no more threads: {NO_THREAD_REMEDY}") from error
    finally:
        flush_logs()


def _load_libraries() -> None:
    """Loads TensorFlow and the server's modules, which takes most of a start's time."""
    _set_up_libraries()
    with quiet_stderr(), absent_packages(*UNUSED_PACKAGES):
        from serving.data_plane.plane import native_module
        from serving.server import server

        native_module()
    del server


def _set_up_libraries() -> None:
    # TensorFlow's own log lines are not JSON, and without a GPU they contain an error about CUDA. They are not
    # needed, because each failure is also the status of a load or of a request.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # numpy's library of linear algebra would start a thread for each core, and checks of answers need none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _versions() -> str:
    lines = [f"millpond {_distribution_version('millpond')}"]
    inside = ", ".join(f"{name} {value}" for name, value in bundled_libraries().items())
    try:
        with quiet_stderr():
            from serving.data_plane.plane import native_module

            build = native_module().build_info()
    except ImportError as error:
        return "\n".join([*lines, f"data plane: not installed ({error})"])
    lines += [f"tensorflow {build['tensorflow']} (needs {MINOR_VERSION})", f"wire {build['wire']}"]
    return "\n".join([*lines, f"inside {inside or 'unknown: not installed by pip'}"])


def _distribution_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
