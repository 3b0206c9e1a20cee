#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "native/tensor/tensor_list.h"

namespace millpond::tensor {

// One named input or output of a signature.
struct TensorSpec {
  static constexpr int64_t kUnknownSize = -1;

  std::string name;         // the name in requests and replies
  std::string tensor_name;  // the name in the graph, like "serving_default_x:0"
  int dtype = 0;            // tensorflow::DataType
  bool is_rank_known = false;
  std::vector<int64_t> dims;  // kUnknownSize for a dimension of any size
  // True if a tensor of another shape is refused before the run. The default leaves that to the
  // kernels, as TensorFlow Serving does: many graphs take shapes that differ from their signature.
  bool has_checked_shape = false;
  // The value of an input in a request that does not send it, as a list of one tensor. Null: each
  // request sends it.
  std::shared_ptr<const TensorList> default_value;
  // Why the model's default of the input cannot be used; "" if it can, or if there is none.
  std::string default_fault;
};

// An output that is several tensors, such as a RaggedTensor. Replies hold dense tensors only.
struct CompositeSpec {
  std::string name;    // the name in the signature
  std::string remedy;  // what it is, and which parts to export
};

// The named inputs and outputs of a signature, each sorted by name.
struct Signature {
  std::string name;
  std::string method_name;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<CompositeSpec> composite_outputs;  // which no request gets
  // Why no request can be answered, with the remedy: an input is composite, or each output is. ""
  // if requests can be.
  std::string obstacle;
  // True if only requests of method_name are accepted. Models of TensorFlow 2 have the method
  // "predict" for every signature, so the operator decides.
  bool has_checked_method_name = false;
};

using SignatureMap = std::map<std::string, Signature, std::less<>>;

// The signature of a request that names no signature.
inline constexpr std::string_view kDefaultSignatureName = "serving_default";

// Returns the index of `name` in sorted `specs`, or -1.
int FindTensorSpec(const std::vector<TensorSpec>& specs, std::string_view name);

// Returns true if `dims` fit the shape of `spec`, checked or not. An open rank fits every shape.
bool ShapeFits(const std::vector<int64_t>& dims, const TensorSpec& spec);

// Returns true if a tensor of this dtype and shape may be fed for `spec`. The shape counts only if
// `spec.has_checked_shape`.
bool TensorFits(int dtype, const std::vector<int64_t>& dims, const TensorSpec& spec);

// Returns a text like "float32[?,3]", as Python's error messages write it; "float32[...]" for an
// open rank.
std::string DescribeTensor(int dtype, bool is_rank_known, const std::vector<int64_t>& dims);
std::string DescribeTensor(const TensorSpec& spec);

}  // namespace millpond::tensor
