#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <thread>
#include <vector>

#include "native/base/clock.h"

namespace millpond::bench {

// Stops the compiler from removing the computation of `value`.
inline void Keep(const void* value) { asm volatile("" : : "r"(value) : "memory"); }

struct CallCost {
  double wall_ns = 0;
  double cpu_ns = 0;  // on the core only; the figure to read if the machine has other work
};

inline int64_t ThreadCpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// Returns the cost of one call of `body(thread, call)`. All threads make `call_count` calls at the
// same time, after a tenth as many calls to warm up. The cost is the cost on the slowest thread.
template <typename Body>
CallCost MeasureOnce(int thread_count, int call_count, const Body& body) {
  std::atomic<int> waiting_count{thread_count};
  std::vector<CallCost> costs(thread_count);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < thread_count; ++thread) {
    threads.emplace_back([&, thread] {
      for (int call = 0; call < call_count / 10; ++call) body(thread, call);
      waiting_count.fetch_sub(1);
      while (waiting_count.load() > 0) std::this_thread::yield();
      const int64_t start_ns = base::MonotonicNs();
      const int64_t start_cpu_ns = ThreadCpuNs();
      for (int call = 0; call < call_count; ++call) body(thread, call);
      costs[thread].cpu_ns = static_cast<double>(ThreadCpuNs() - start_cpu_ns) / call_count;
      costs[thread].wall_ns = static_cast<double>(base::MonotonicNs() - start_ns) / call_count;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CallCost slowest;
  for (const CallCost& cost : costs) {
    slowest.wall_ns = std::max(slowest.wall_ns, cost.wall_ns);
    slowest.cpu_ns = std::max(slowest.cpu_ns, cost.cpu_ns);
  }
  return slowest;
}

// Measures 7 runs, and prints the run with the median time on the core.
template <typename Body>
void Measure(const char* name, int thread_count, int call_count, const Body& body) {
  std::vector<CallCost> runs;
  for (int run = 0; run < 7; ++run) runs.push_back(MeasureOnce(thread_count, call_count, body));
  std::nth_element(runs.begin(), runs.begin() + 3, runs.end(),
                   [](const CallCost& a, const CallCost& b) { return a.cpu_ns < b.cpu_ns; });
  std::printf("%-36s threads=%d cpu_ns=%-8.1f wall_ns=%.1f\n", name, thread_count, runs[3].cpu_ns,
              runs[3].wall_ns);
}

}  // namespace millpond::bench
