#pragma once

#include <map>
#include <string>

namespace millpond::tensor {

// The verdict on the rows of a signature's outputs, by its graph: is each row of an output computed
// from the same row of the inputs alone, whatever the other rows are, and however many?
struct RowVerdict {
  enum class Kind {
    kIndependent,  // it is
    kUnknown,      // the graph does not show it: for example, by an op that the analysis lacks
    kMixes,        // it is not: for example, by a sum over the rows
  };

  Kind kind = Kind::kUnknown;
  // "" if independent; otherwise a text with the output, the node and its op.
  std::string reason = "its graph was not looked at";
};

// Verdicts by the name of their signature.
using RowVerdicts = std::map<std::string, RowVerdict, std::less<>>;

}  // namespace millpond::tensor
