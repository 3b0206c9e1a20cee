#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/inference/infer.h"
#include "native/rest/json_reader.h"

namespace millpond::rest {

// A request's body: JSON, and the binary data after it. The elements of its inputs are not read
// yet.
struct InferBody {
  // The elements of an input. At most one of the two is set.
  struct Data {
    std::optional<JsonReader::Mark> json;
    std::optional<std::string_view> binary;
  };

  inference::InferRequest request;
  std::vector<Data> data;                      // for each input
  std::vector<std::optional<bool>> is_binary;  // for each named output, if it is set
  bool is_binary_by_default = false;           // for all other outputs
};

// Reads a body whose JSON is `json`'s text, followed by `binary`. Returns INVALID_ARGUMENT if they
// are not a request. Borrows both.
base::Status ReadInferBody(JsonReader* json, std::string_view binary, InferBody* body);

// The elements of a body: as JSON, nested or flat, or binary. Borrows both.
class BodyElements final : public inference::InferElements {
 public:
  // `json` is the reader that has read `body`.
  BodyElements(const InferBody& body, JsonReader* json) : body_(body), json_(json) {}
  base::Status Read(size_t input, int dtype, const std::vector<int64_t>& dims,
                    int64_t element_count, size_t index,
                    tensor::TensorList* tensors) const override;

 private:
  const InferBody& body_;
  JsonReader* const json_;
};

}  // namespace millpond::rest
