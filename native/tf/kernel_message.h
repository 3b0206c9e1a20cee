#pragma once

#include <string>
#include <string_view>

namespace millpond::tf {

// Returns the sentence of the kernel that failed, with the name of its node once.
//
// TensorFlow's text of a failed run also has the node's whole definition, the nodes that wait for
// it and every other kernel that failed. Clients see the result. Thread: any. Cost: a few µs.
std::string KernelMessage(std::string_view text);

}  // namespace millpond::tf
