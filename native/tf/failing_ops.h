#pragma once

#include <string>

namespace tensorflow {
class NodeDef;
}  // namespace tensorflow

namespace millpond::tf {

// Ops that programs of XLA compute in another way than their CPU kernels. Most of these kernels
// refuse some values, where XLA computes something without meaning. So a request that fails on the
// CPU would be answered by an accelerator.

// Returns true for ops that check their values, and that no range of integers makes safe.
bool ChecksValues(const std::string& op);
// Returns true for ops that take rows of a tensor, and refuse an index beyond it.
bool LooksUp(const std::string& op);
// Returns true for ops of integers that refuse some second operands: a divisor of 0, or a negative
// exponent.
bool ChecksSecondOperand(const tensorflow::NodeDef& node);
// Returns true for shifts of integers. By a negative number of bits, or by all bits and more, a CPU
// shifts by none or by all but one, and XLA gives 0 or -1.
bool Shifts(const std::string& op);
// Returns true for ops of integers in which XLA loses bits, and the CPU does not: it adds up a mean
// in the integers' own type, and resizes images as float32.
bool LosesBits(const tensorflow::NodeDef& node);

// Returns true for ops that draw the same numbers from the same seed in each run, but others in
// XLA, which has generators of its own.
bool DrawsOtherNumbers(const std::string& op);

}  // namespace millpond::tf
