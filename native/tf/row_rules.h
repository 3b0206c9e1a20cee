#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "native/tf/row_node.h"

// The rules of ops: row_rules.cc has those that compute, row_shape_rules.cc those that arrange and
// select, and row_folds.cc those for what several rows have in common.

namespace millpond::tf {

// Returns output `output` of a node, none of whose inputs is kUnknown or kMixed.
using RowRule = RowValue (*)(const RowNode& node, int output);
using RowRules = std::unordered_map<std::string_view, RowRule>;

// The rules of row_shape_rules.cc for nodes that have an input with rows.
const RowRules& ShapeRules();
// The rules for nodes with any inputs: of ops that hand tensors through, or make rows of tensors
// that have none.
const RowRules& MakingRules();

// Returns an output of a node whose inputs depend on no row.
RowValue ApplyFree(const RowNode& node, int output);

// Returns `axis` from 0 on, as ops count a negative one from the end; nullopt if the rank has to be
// known for that and is not, or if there is no such axis.
std::optional<int> AxisOf(int64_t axis, const RowValue& value);
// Returns the one number of a value, such as an axis; nullopt if it is not known.
std::optional<int64_t> NumberOf(const RowValue& value);
// Returns true if no input but number `index` depends on rows or on their number.
bool AreOthersFixed(const RowNode& node, size_t index);

// Returns a value of integers that depends on no row, element by element, if the op is one by which
// graphs compute shapes; nullopt otherwise.
std::optional<std::vector<Quantity>> ComputeIntegers(const RowNode& node);

// Returns how a node's result goes with what each row alone has, by the node's inputs.
Fold FoldOf(const RowNode& node);

// Rules that several ops share.
RowValue CombineRows(const RowNode& node, int output);  // elementwise, with broadcasting
RowValue KeepRows(const RowNode& node, int output);     // elementwise, of one input

}  // namespace millpond::tf
