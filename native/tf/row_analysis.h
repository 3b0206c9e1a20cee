#pragma once

#include <string>
#include <vector>

#include "native/tensor/row_verdict.h"
#include "native/tf/row_value.h"

namespace tensorflow {
class MetaGraphDef;
class SignatureDef;
}  // namespace tensorflow

namespace millpond::tf {

// Returns for each signature what its graph shows about the rows of its outputs.
//
// Theory. R is the number of rows of a run: each input of a signature has R entries in its first
// dimension. From there the analysis follows the data, node by node, and finds for each tensor and
// every R how its values come about (RowValue). They may be the same in every run, or depend on R
// alone. Or the tensor consists of rows, each of which is computed from one row of the inputs. The
// rules of the ops (row_rules.h) say what becomes of rows; a dimension that happens to have one
// entry is never taken for the rows, because R is a symbol. Functions are walked anew for each
// call, with the values of its arguments; a loop until its values change no more. A case that no
// rule foresees is kUnknown, never independent.
//
// Holds for inputs of the shapes that the signature names, and as long as no request writes to a
// variable or a table (variable_writes.h). Control inputs change no value, but in conditionals of
// TensorFlow 1 they choose which branch a Merge gets: before a Merge they count as other inputs do.
// They may also lead to an assertion, which must fail for all rows together if it fails for a row
// alone.
//
// Call it once TensorFlow has accepted the graph: the shape functions of ops rely on that. Cost:
// about 10 us a node.
tensor::RowVerdicts AnalyzeRows(const tensorflow::MetaGraphDef& meta_graph);

// Returns what each of `tensors` is made of in runs that feed the inputs of `signature`.
std::vector<RowValue> AnalyzeTensors(const tensorflow::MetaGraphDef& meta_graph,
                                     const tensorflow::SignatureDef& signature,
                                     const std::vector<std::string>& tensors);

}  // namespace millpond::tf
