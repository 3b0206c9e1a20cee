"""The grouping of a profile into the parts of a request."""

import pytest

from loadtest.measure.budget import Frame, budget_us, part_of, samples, summed
from loadtest.report.turns_report import budget_table

MODULE = "/venv/serving/data_plane/_data_plane.cpython-311-x86_64-linux-gnu.so"
FRAMEWORK = "/venv/tensorflow/libtensorflow_framework.so.2"
KERNELS = "/venv/tensorflow/libtensorflow_cc.so.2"
KERNEL = "[kernel.kallsyms]"

SCRIPT = f"""request-0
\tffffffff82000001 _raw_spin_unlock_irqrestore ({KERNEL})
\tffffffff82000002 tcp_sendmsg ({KERNEL})
\tffffffff82000003 __x64_sys_sendto ({KERNEL})
\t    7f0000000001 __send (/usr/lib/libc.so.6)

request-1
\t    7f0000000002 millpond::inference::DecodePredict(std::string const&, int) ({MODULE})

request-1
\t    7f0000000003 void f<a (b)>(c) ({KERNELS})
"""


def test_samples_have_frames_with_the_innermost_first() -> None:
    sent, decoded, computed = samples(SCRIPT)
    assert [frame.symbol for frame in sent][-2:] == ["__x64_sys_sendto", "__send"]
    assert decoded[0].symbol == "millpond::inference::DecodePredict(std::string const&, int)"
    assert computed[0] == Frame("void f<a (b)>(c)", KERNELS)


@pytest.mark.parametrize(
    ("symbol", "dso", "part"),
    [
        ("millpond::rpc::Connection::Read()", MODULE, "wire: connections, calls and threads"),
        ("nghttp2_session_mem_recv", MODULE, "wire: nghttp2"),
        ("SSL_read", MODULE, "wire: TLS"),
        ("millpond::servable::ServingMap::Find()", MODULE, "ours: look-up and batches"),
        ("millpond::metrics::LatencyHistogram::Record(long)", MODULE, "ours: record"),
        ("std::_Function_handler<void (), millpond::tf::X>::_M_invoke", MODULE, "ours: around the run"),
        ("std::vector<long>::_M_realloc_insert", MODULE, "ours: rest"),
        ("tensorflow::(anonymous namespace)::ExecutorState<P>::Process", FRAMEWORK, "TensorFlow: executor"),
        ("tensorflow::OpKernelContext::set_output", FRAMEWORK, "TensorFlow: contexts and tensors"),
        ("tensorflow::Tensor::~Tensor", FRAMEWORK, "TensorFlow: contexts and tensors"),
        ("Eigen::ThreadPoolTempl<E>::GlobalSteal", FRAMEWORK, "TensorFlow: pools"),
        ("absl::Mutex::Lock", FRAMEWORK, "TensorFlow: rest"),
        ("tensorflow::GatherOp::Compute", KERNELS, "TensorFlow: kernels"),
        ("[unknown]", "[JIT] tid 27735", "TensorFlow: kernels"),
        ("[unknown]", "/tmp/perf-27735.map", "TensorFlow: kernels"),
        ("__memmove_avx_unaligned_erms", "/usr/lib/libc.so.6", "memory: copies and comparisons"),
        ("free", "/usr/lib/libjemalloc.so.2", "memory: malloc and free"),
        ("[unknown]", "/usr/lib/libjemalloc.so.2", "memory: malloc and free"),
        ("_PyEval_EvalFrameDefault", "/usr/lib/libpython3.11.so.1.0", "Python"),
        ("__vdso_clock_gettime", "[vdso]", "clocks and system calls"),
        ("__tls_get_addr", "/usr/lib/ld-linux-x86-64.so.2", "other"),
    ],
)  # fmt: skip
def test_part_of_a_function_is_by_library_and_name(symbol: str, dso: str, part: str) -> None:
    assert part_of([Frame(symbol, dso)]) == part


@pytest.mark.parametrize(
    ("caller", "part"),
    [
        ("__x64_sys_recvfrom", "kernel: receive"),
        ("__x64_sys_sendmsg", "kernel: send"),
        ("__x64_sys_epoll_wait", "kernel: epoll"),
        ("__x64_sys_futex", "kernel: futex"),
        ("exc_page_fault", "kernel: page faults and mappings"),
        ("__x64_sys_madvise", "kernel: page faults and mappings"),
        ("asm_sysvec_apic_timer_interrupt", "kernel: rest"),
    ],
)
def test_part_of_kernel_code_is_by_system_call(caller: str, part: str) -> None:
    frames = [Frame("finish_task_switch", KERNEL), Frame(caller, KERNEL), Frame("f", MODULE)]
    assert part_of(frames) == part


def test_budget_shares_out_the_whole_request() -> None:
    parts = budget_us(SCRIPT, request_us=90.0)
    assert parts == {
        "kernel: send": 30.0,
        "ours: decode and encode": 30.0,
        "TensorFlow: kernels": 30.0,
    }


def test_budget_of_an_empty_profile_is_empty() -> None:
    assert budget_us("", request_us=90.0) == {}


def test_summed_adds_the_parts_of_a_group() -> None:
    parts = {"ours: record": 1.0, "kernel: send": 5.0, "ours: JSON": 0.5, "other": 2.0}
    assert summed(parts) == {"kernel": 5.0, "other": 2.0, "ours": 1.5}


def test_table_hides_small_parts_and_keeps_their_sum() -> None:
    loads = {
        "this 1:1x1": {"request_us": 100.0, "parts": {"ours: record": 0.2, "kernel: send": 99.8}},
        "this 1:4x16": {"request_us": 50.0, "parts": {"kernel: send": 50.0}},
    }
    table = budget_table(loads)
    assert list(table.columns[0].cells) == ["kernel: send", "kernel", "ours", "all"]
    assert list(table.columns[1].cells) == ["99.8", "99.8", "0.2", "100.0"]
    assert list(table.columns[2].cells) == ["50.0", "50.0", "0.0", "50.0"]
