// Measures the cost of the reservoir for a request: if the request is not taken, as is usual, and
// if it is taken. All threads share one reservoir. CTR requests of 1 and 100 rows have 1 and 26
// KiB.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "native/base/clock.h"
#include "native/bench/measure.h"
#include "native/servable/request_reservoir.h"

namespace millpond::bench {
namespace {

using servable::RequestKind;
using servable::RequestReservoir;
using servable::RequestReservoirLimits;

constexpr char kSignatureName[] = "serving_default";
// The time between two requests: longer than the reservoir ever waits between two samples.
constexpr int64_t kLaterNs = 100'000'000;

void Take(RequestReservoir& reservoir, const std::string& request, int64_t now_ns) {
  const RequestKind kind(kSignatureName, tensor::OutputSet::All(2), request.size());
  const std::string_view segment = request;
  reservoir.Take(kind, {&segment, 1}, now_ns);
}

void MeasureNotTaken(int thread_count) {
  RequestReservoir reservoir{RequestReservoirLimits()};
  const std::string request(1'024, 'x');
  const int64_t now_ns = base::MonotonicNs();
  Take(reservoir, request, now_ns);
  Measure("make a kind, not wanted", thread_count, 20'000'000, [&](int, int) {
    const RequestKind kind(kSignatureName, tensor::OutputSet::All(2), request.size());
    const bool wants = reservoir.Wants(kind, now_ns);
    Keep(&wants);
  });
}

void MeasureTaken(size_t bytes, int call_count) {
  RequestReservoir reservoir{RequestReservoirLimits()};
  const std::string request(bytes, 'x');
  int64_t now_ns = base::MonotonicNs();
  const std::string name = "taken bytes=" + std::to_string(bytes);
  Measure(name.c_str(), 1, call_count, [&](int, int) {
    now_ns += kLaterNs;
    Take(reservoir, request, now_ns);
  });
}

}  // namespace
}  // namespace millpond::bench

int main() {
  millpond::bench::MeasureNotTaken(1);
  millpond::bench::MeasureNotTaken(2);
  millpond::bench::MeasureTaken(1'024, 200'000);
  millpond::bench::MeasureTaken(26 * 1'024, 200'000);
  millpond::bench::MeasureTaken(1'000'000, 10'000);
  millpond::bench::MeasureTaken(4'000'000, 2'000);
}
