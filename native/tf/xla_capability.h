#pragma once

#include <memory>
#include <string>

namespace tensorflow {
class FunctionLibraryDefinition;
class Node;
}  // namespace tensorflow

namespace millpond::tf {

// Tells which nodes of a graph XLA compiles without a change of their meaning. Borrows the
// functions.
class XlaCapability {
 public:
  explicit XlaCapability(const tensorflow::FunctionLibraryDefinition& functions);
  ~XlaCapability();

  // Returns why a node cannot be compiled, like "has strings"; "" if it can.
  std::string WhyNot(const tensorflow::Node& node) const;

 private:
  struct Checker;
  const std::unique_ptr<Checker> checker_;
};

}  // namespace millpond::tf
