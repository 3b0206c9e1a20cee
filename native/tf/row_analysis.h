#pragma once

#include "native/tensor/row_verdict.h"

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// Returns for each signature what its graph shows about the rows of its outputs.
//
// Theory. R is the number of rows of a run: each input of a signature has R entries in its first
// dimension. From there the analysis computes, node by node in the order of the data, what each
// tensor is made of for every R (RowValue): the same in every run, or by R alone, or rows, of which
// each is computed from one row of the inputs. The rules of the ops (row_rules.h) say what becomes
// of rows; a dimension that happens to have one entry is never taken for the rows, because R is a
// symbol. Functions are walked anew for each call, with the values of its arguments; a loop until
// its values change no more. What a rule does not foresee is kUnknown, never independent.
//
// Holds for inputs of the shapes that the signature names, and as long as no request writes to a
// variable or a table (variable_writes.h). Control inputs change no value, but in conditionals of
// TensorFlow 1 they choose which branch a Merge gets: before a Merge they count as other inputs do.
// They may also lead to an assertion, which has to fail for all rows if it fails for one alone.
//
// Call it once TensorFlow has accepted the graph: the shape functions of ops rely on that. Cost:
// about 10 us a node.
tensor::RowVerdicts AnalyzeRows(const tensorflow::MetaGraphDef& meta_graph);

}  // namespace millpond::tf
