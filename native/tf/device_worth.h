#pragma once

#include <cstdint>
#include <string>

namespace millpond::tf {

// Counts the floating-point operations of the products of matrices and the convolutions in `hlo`, a
// serialized xla.HloModuleProto: two for each product of two numbers. The body of a loop counts
// once.
int64_t CountProductFlops(const std::string& hlo);

// Returns why a signature is not worth an accelerator; "" if it is. `flops` are those of its
// products, and `crossing_bytes` travel to the accelerator and back, both for a row.
//
// A core copies a byte into the transfer and out of it in about 0.2 ns, and does a flop of a large
// product in about 0.02 ns. So with fewer than kFlopsPerByte the CPU has the answer before the
// copies are done.
inline constexpr int64_t kFlopsPerByte = 10;
std::string WhyNotWorthAccelerating(int64_t flops, int64_t crossing_bytes);

}  // namespace millpond::tf
