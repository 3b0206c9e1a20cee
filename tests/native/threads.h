#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace millpond::testing {

// Runs `body(thread)` on `thread_count` threads that start together, and waits for all. With all
// of them alive at once, each is a thread of its own to whatever counts by thread.
template <typename Body>
void RunTogether(int thread_count, const Body& body) {
  std::atomic<int> waiting_count{thread_count};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < thread_count; ++thread) {
    threads.emplace_back([&, thread] {
      waiting_count.fetch_sub(1);
      while (waiting_count.load() > 0) std::this_thread::yield();
      body(thread);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs `body()` at once on two threads that share a shard of a base::Sharded of `shard_count`:
// `use()`, which uses it, gives the threads in between their numbers.
template <typename Use, typename Body>
void RunOnOneShard(int shard_count, const Use& use, const Body& body) {
  std::atomic<int> waiting_count{2};
  const auto use_and_run = [&] {
    use();
    waiting_count.fetch_sub(1);
    while (waiting_count.load() > 0) std::this_thread::yield();
    body();
  };
  std::thread first(use_and_run);
  while (waiting_count.load() > 1) std::this_thread::yield();
  for (int between = 1; between < shard_count; ++between) std::thread(use).join();
  std::thread second(use_and_run);
  first.join();
  second.join();
}

}  // namespace millpond::testing
