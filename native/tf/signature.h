#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tensorflow {
class SignatureDef;
}  // namespace tensorflow

namespace millpond::tf {

// One named input or output of a signature.
struct TensorSpec {
  static constexpr int64_t kUnknownSize = -1;

  std::string name;         // what clients say
  std::string tensor_name;  // what the graph says, like "serving_default_x:0"
  int dtype = 0;            // tensorflow::DataType
  bool is_rank_known = false;
  std::vector<int64_t> dims;  // kUnknownSize where any size will do
  // Whether a tensor of another shape is refused before the graph sees it. Like TensorFlow Serving,
  // the default leaves that to the kernels: many graphs take shapes that their export did not name.
  bool has_checked_shape = false;
};

// Named inputs and outputs of a servable, each sorted by name.
struct Signature {
  std::string name;
  std::string method_name;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  // Whether a request of another method than method_name is refused. Models of TensorFlow 2 say
  // "predict" of every signature, so the operator decides.
  bool has_checked_method_name = false;
};

using SignatureMap = std::map<std::string, Signature, std::less<>>;

// The signature that a request means which names none.
inline constexpr std::string_view kDefaultSignatureName = "serving_default";

Signature MakeSignature(const std::string& name, const tensorflow::SignatureDef& definition);

// The index of `name` in sorted `specs`, or -1.
int FindTensorSpec(const std::vector<TensorSpec>& specs, std::string_view name);

// Returns whether `dims` are a shape that `spec` names, checked or not.
bool ShapeFits(const std::vector<int64_t>& dims, const TensorSpec& spec);

// Returns whether a tensor of this dtype and shape may be fed for `spec`: its shape counts only if
// `spec` has it checked.
bool TensorFits(int dtype, const std::vector<int64_t>& dims, const TensorSpec& spec);

// Like "float32[?,3]", as Python's error messages write it; "float32[...]" where the rank is open.
std::string DescribeTensor(int dtype, bool is_rank_known, const std::vector<int64_t>& dims);
std::string DescribeTensor(const TensorSpec& spec);

// The name of a tensorflow::DataType, like "float32"; "dtype 77" where there is no such type.
std::string DtypeName(int dtype);

}  // namespace millpond::tf
