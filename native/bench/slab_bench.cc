// Measures how much pre-faulting and returning a slab disturbs other threads. On each core a thread
// of real-time priority sleeps 100 µs at a time and records how late it wakes. Meanwhile an
// idle-priority thread works through 512 MiB in steps. Compares kinds of pages, ways of touching,
// steps and pauses. Then measures the cost of random reads, of sealing and of mincore, by kind of
// page.
//
// Usage: slab_bench [megabytes]
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/bench/measure.h"
#include "native/memory/slab.h"

namespace millpond::bench {
namespace {

using memory::Slab;

constexpr int64_t kSleepNs = 100'000;

void UseIdlePriority() {
  const sched_param parameters{};
  sched_setscheduler(0, SCHED_IDLE, &parameters);
}

std::unique_ptr<Slab> ReserveSlab(size_t bytes, bool is_huge) {
  std::unique_ptr<Slab> slab = std::move(Slab::Reserve(bytes).value());
  madvise(slab->start(), slab->reserved_bytes(), is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return slab;
}

// Wakes every kSleepNs on one core until Stop is called.
class Sleeper {
 public:
  explicit Sleeper(int core) : thread_([this, core] { Run(core); }) {}

  std::vector<int64_t> Stop() {
    is_stopping_ = true;
    thread_.join();
    return std::move(lateness_ns_);
  }

 private:
  void Run(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    sched_setaffinity(0, sizeof(cores), &cores);
    prctl(PR_SET_TIMERSLACK, 1);
    // Real-time priority keeps other processes from delaying it. The remaining delays cannot be
    // preempted.
    const sched_param real_time{1};
    if (sched_setscheduler(0, SCHED_FIFO, &real_time) != 0) std::puts("normal priority");
    while (!is_stopping_) {
      const int64_t due_ns = base::MonotonicNs() + kSleepNs;
      base::SleepNs(kSleepNs);
      lateness_ns_.push_back(base::MonotonicNs() - due_ns);
    }
  }

  std::atomic<bool> is_stopping_{false};
  std::vector<int64_t> lateness_ns_;
  std::thread thread_;
};

// Runs `work` at idle priority beside a sleeper on each core. Prints how late the sleepers woke.
void MeasureDisturbance(const std::string& name, const std::function<void()>& work) {
  const auto core_count = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<std::unique_ptr<Sleeper>> sleepers;
  for (int core = 0; core < core_count; ++core) sleepers.push_back(std::make_unique<Sleeper>(core));
  const int64_t start_ns = base::MonotonicNs();
  std::thread worker([&] {
    UseIdlePriority();
    work();
  });
  worker.join();
  const int64_t took_ns = base::MonotonicNs() - start_ns;
  std::vector<int64_t> lateness_ns;
  for (const auto& sleeper : sleepers) {
    const std::vector<int64_t> of_core = sleeper->Stop();
    lateness_ns.insert(lateness_ns.end(), of_core.begin(), of_core.end());
  }
  std::sort(lateness_ns.begin(), lateness_ns.end());
  const auto us = [&](double quantile) {
    return static_cast<double>(
               lateness_ns[static_cast<size_t>(quantile * (lateness_ns.size() - 1))]) /
           1e3;
  };
  std::printf(
      "%-44s took_ms=%-7.0f wakes=%-6zu late_us p50=%-6.0f p99=%-6.0f p99.9=%-6.0f max=%.0f\n",
      name.c_str(), static_cast<double>(took_ns) / 1e6, lateness_ns.size(), us(0.5), us(0.99),
      us(0.999), us(1));
  std::fflush(stdout);
}

void InSteps(size_t bytes, size_t step_bytes, int64_t pause_ns,
             const std::function<void(size_t offset)>& step) {
  for (size_t offset = 0; offset < bytes; offset += step_bytes) {
    step(offset);
    if (pause_ns > 0) base::SleepNs(pause_ns);
  }
}

void MeasurePreFault(size_t bytes, bool is_huge, bool populates, size_t step_bytes,
                     int64_t pause_ns) {
  const std::string how = std::string(is_huge ? "huge" : "4k") +
                          (populates ? " populate" : " touch") +
                          " step_kib=" + std::to_string(step_bytes / 1024) +
                          " pause_us=" + std::to_string(pause_ns / 1000);
  const std::unique_ptr<Slab> slab = ReserveSlab(bytes, is_huge);
  MeasureDisturbance("prefault " + how, [&] {
    InSteps(bytes, step_bytes, pause_ns, [&](size_t offset) {
      if (populates) {
        madvise(slab->start() + offset, step_bytes, MADV_POPULATE_WRITE);
      } else {
        slab->PreFault(offset, step_bytes);
      }
    });
  });
  if (populates) return;
  MeasureDisturbance("return " + how, [&] {
    InSteps(bytes, step_bytes, pause_ns,
            [&](size_t offset) { slab->ReturnPages(offset, step_bytes); });
  });
}

void MeasureOnce(const char* name, const std::function<void()>& act) {
  const int64_t start_ns = base::MonotonicNs();
  act();
  std::printf("%-44s us=%.0f\n", name, static_cast<double>(base::MonotonicNs() - start_ns) / 1e3);
}

void MeasureUse(size_t bytes, bool is_huge) {
  const std::unique_ptr<Slab> slab = ReserveSlab(bytes, is_huge);
  slab->PreFault(0, bytes);
  std::printf("--- %s pages, %zu MiB resident\n", is_huge ? "huge" : "4k",
              slab->ResidentBytes() >> 20);
  MeasureOnce("resident_bytes", [&] { static_cast<void>(slab->ResidentBytes()); });
  MeasureOnce("seal", [&] { static_cast<void>(slab->Seal()); });
  MeasureOnce("unseal", [&] { static_cast<void>(slab->Unseal()); });
  std::mt19937_64 rng(1);
  std::vector<size_t> rows(1 << 16);
  for (size_t& row : rows) row = rng() % (bytes / 64) * 64;
  Measure("read of a random 64-byte row", 1, 2'000'000, [&](int, int call) {
    Keep(reinterpret_cast<const void*>(
        static_cast<uintptr_t>(slab->start()[rows[(call * 7919) & 0xffff]])));
  });
  MeasureOnce("unmap", [&] { munmap(slab->start(), slab->reserved_bytes() - 4096); });
}

void MeasureAll(size_t bytes) {
  constexpr size_t kKiB = 1024;
  MeasureDisturbance("nothing", [] { base::SleepNs(500'000'000); });
  for (const bool is_huge : {false, true}) {
    for (const size_t step_bytes : {256 * kKiB, 1024 * kKiB, 2048 * kKiB}) {
      if (is_huge && step_bytes < memory::kSlabUnitBytes) continue;
      for (const int64_t pause_ns : {0, 1'000'000}) {
        MeasurePreFault(bytes, is_huge, /*populates=*/false, step_bytes, pause_ns);
        MeasurePreFault(bytes, is_huge, /*populates=*/true, step_bytes, pause_ns);
      }
    }
  }
  for (const bool is_huge : {false, true}) MeasureUse(bytes, is_huge);
}

}  // namespace
}  // namespace millpond::bench

int main(int argc, char** argv) {
  const size_t megabytes = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 512;
  millpond::bench::MeasureAll(megabytes << 20);
}
