// Measures the cost of a trace for a request whose metadata is already sorted: reading a header
// that is not sampled, a header over the rate limit, and a header whose span is kept. All threads
// share one buffer. If neither --otlp_endpoint nor --slow_request_log_seconds is set, a request
// tests one pointer twice, and none of this code runs.
#include <cstdint>
#include <string>
#include <utility>

#include "native/base/trace_context.h"
#include "native/bench/measure.h"
#include "native/metrics/span_buffer.h"

namespace millpond::bench {
namespace {

using metrics::RequestSpan;
using metrics::SpanBuffer;

constexpr char kSampled[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr char kUnsampled[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
constexpr int64_t kNowNs = 1'000'000'000;

// Offers a span as rpc::RequestTrace does.
void Offer(SpanBuffer* spans, const char* header) {
  auto context = base::ParseTraceparent(header);
  if (!context || !context->is_sampled || !spans->Admit(kNowNs)) return;
  RequestSpan span;
  span.context = std::move(*context);
  span.model = "the name of a model";
  spans->Put(std::move(span));
}

void MeasureOffer(const char* name, int thread_count, const char* header, int64_t per_second_max) {
  SpanBuffer spans({1024, per_second_max});
  Measure(name, thread_count, 2'000'000, [&](int thread, int call) {
    Offer(&spans, header);
    // Only one thread takes spans, as in the server. It takes them so often that no span is dropped
    // because the buffer is full.
    if (thread == 0 && call % 64 == 0) Keep(spans.Take(1024).data());
  });
}

}  // namespace
}  // namespace millpond::bench

int main() {
  for (const int thread_count : {1, 2}) {
    millpond::bench::MeasureOffer("not sampled", thread_count, millpond::bench::kUnsampled, 200);
    millpond::bench::MeasureOffer("sampled, over the rate", thread_count, millpond::bench::kSampled,
                                  200);
    millpond::bench::MeasureOffer("sampled, its span put and taken", thread_count,
                                  millpond::bench::kSampled, INT32_MAX);
  }
}
