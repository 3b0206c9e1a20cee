#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tensor/signature.h"
#include "native/tf/resource_reads.h"

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// One signature as a program of XLA, for one number of rows.
struct HloProgram {
  std::string hlo;  // a serialized xla.HloModuleProto
  // The dimensions of each output, in the signature's order.
  std::vector<std::vector<int64_t>> output_dims;
};

// Translates one signature of a SavedModel to programs of XLA: its inputs are the first arguments,
// in the signature's order, and the variables that it reads follow them, so that two versions of a
// graph have the same program. XLA compiles programs of fixed shapes, so there is one program for
// each number of rows. The translation is TensorFlow's XlaCompiler, which its CPU package has too.
class HloCompiler {
 public:
  // Prepares the translation. Returns UNIMPLEMENTED, with the input or the output, if a dimension
  // other than the first is open or the dtype is none of XLA's, and the error of the graph if it
  // cannot be read.
  static base::StatusOr<std::unique_ptr<HloCompiler>> Make(const tensorflow::MetaGraphDef& graph,
                                                           const tensor::Signature& signature);
  ~HloCompiler();
  HloCompiler(const HloCompiler&) = delete;
  HloCompiler& operator=(const HloCompiler&) = delete;

  const std::vector<ResourceKey>& variables() const;
  // Translates the signature for `rows` rows: about 0.1 s for the CTR model. Returns the reason,
  // with the op, if XLA cannot compile the graph.
  base::StatusOr<HloProgram> Translate(int64_t rows) const;

 private:
  struct State;
  explicit HloCompiler(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace millpond::tf
