#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/tf/row_value.h"

namespace tensorflow {
class AttrValue;
class NodeDef;
class OpDef;
}  // namespace tensorflow

namespace millpond::tf {

// One node with the values of its inputs, for the rules of its op. Borrows all.
class RowNode {
 public:
  // `node` has all attributes, those with default values too.
  RowNode(const tensorflow::NodeDef& node, const tensorflow::OpDef& op,
          const std::vector<RowValue>& inputs);

  const std::string& op() const;
  const tensorflow::NodeDef& node() const { return node_; }
  bool is_stateful() const;
  const std::vector<RowValue>& inputs() const { return inputs_; }
  const RowValue& input(size_t index) const { return inputs_[index]; }
  size_t input_count() const { return inputs_.size(); }
  size_t output_count() const { return output_dtypes_.size(); }

  // The value of an attribute; 0, false, "" or {} if the node lacks it.
  int64_t Integer(const char* name) const;
  bool Flag(const char* name) const;
  std::string Text(const char* name) const;
  std::vector<int64_t> Integers(const char* name) const;
  // The first output of the op's argument `name`, and their number.
  std::pair<int, int> OutputsOf(const char* name) const;

  // --- Values of an output ---

  // Rows along `axis`, with the other dimensions that the op's shape function returns.
  RowValue Rows(int axis, int64_t factor, int output) const;
  // A value that depends on no row.
  RowValue Free(int output) const;
  RowValue Unknown(std::string reason) const { return Of(RowValue::Kind::kUnknown, reason); }
  RowValue Mixed(std::string reason) const { return Of(RowValue::Kind::kMixed, reason); }
  RowCause Cause(std::string reason) const;

 private:
  RowValue Of(RowValue::Kind kind, std::string reason) const;
  const tensorflow::AttrValue* Find(const char* name) const;
  void InferShapes();

  const tensorflow::NodeDef& node_;
  const tensorflow::OpDef& op_;
  const std::vector<RowValue>& inputs_;
  std::vector<int> output_dtypes_;
  // The dimensions of each output: nullopt for an unknown rank, -1 for an unknown size.
  std::vector<std::optional<std::vector<int64_t>>> output_dims_;
};

// Returns the values of all outputs of a node that calls no function.
std::vector<RowValue> ApplyRule(const RowNode& node);

}  // namespace millpond::tf
