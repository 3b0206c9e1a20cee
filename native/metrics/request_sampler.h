#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "native/metrics/request_statistics.h"

namespace millpond::metrics {

// The thread that ends a RequestStatistics' seconds, at normal priority: where the cores are busy
// it comes late, and the second is as much longer.
//
// Thread: it makes one, `millpond-stats`. Owner: the composition root.
// Cost: once a second, on two cores, some 60 µs for each method of each version that had requests.
class RequestSampler {
 public:
  explicit RequestSampler(std::shared_ptr<RequestStatistics> statistics);
  ~RequestSampler() { Stop(); }
  RequestSampler(const RequestSampler&) = delete;
  RequestSampler& operator=(const RequestSampler&) = delete;

  // Ends the thread. A second call does nothing.
  void Stop();

 private:
  void Run();
  // False where it is stopped meanwhile.
  bool RestUntil(int64_t at_ns);

  const std::shared_ptr<RequestStatistics> statistics_;
  std::mutex mutex_;
  std::condition_variable is_stopping_changed_;
  bool is_stopping_ = false;
  std::thread thread_;
};

// When the second after `now_ns` ends, where one should have ended at `due_ns`, at `now_ns` or
// before: seconds that were missed are not made up for.
int64_t NextSecondNs(int64_t due_ns, int64_t now_ns);

}  // namespace millpond::metrics
