#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/inference/model_spec.h"
#include "native/metrics/request_recorder.h"
#include "native/servable/batch_queue.h"
#include "native/servable/routing.h"
#include "native/tensor/run_context.h"

namespace millpond::rest {

// The header fields of a request, with names in lower case. A value.
class RequestHeaders final : public servable::RequestMetadata {
 public:
  RequestHeaders() = default;
  explicit RequestHeaders(std::vector<std::pair<std::string, std::string>> fields)
      : fields_(std::move(fields)) {}

  // Returns the value of the first field of that name, or nullopt.
  std::optional<std::string_view> Find(std::string_view key) const override;

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

// One request over HTTP, as the event loop hands it over.
struct RestRequest {
  metrics::Method method = metrics::Method::kRestPredict;
  inference::ModelSpec model;  // selects the version; the signature's name is in the body
  RequestHeaders headers;
  std::string_view body;    // as received, so perhaps compressed; borrowed until it is answered
  int64_t received_ns = 0;  // as of base::MonotonicNs, like the deadline
  int64_t deadline_ns = tensor::RunContext::kNoDeadline;

  bool is_compressed() const { return headers.Find("content-encoding").has_value(); }
};

// Returns the key of the batches that a request may join, as its URL and the ends of its body show
// it. A guess, as every key: the signature's name may stand elsewhere in the body. kNoBatchKey for
// a compressed body, whose length and content show only when it is inflated.
servable::BatchKey BatchKeyOf(const RestRequest& request);

}  // namespace millpond::rest
