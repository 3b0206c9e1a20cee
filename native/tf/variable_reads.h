#pragma once

#include <set>
#include <string>

namespace tensorflow {
class MetaGraphDef;
class Session;
}  // namespace tensorflow

namespace millpond::tf {

// A variable's key in a session's resource manager.
struct VariableKey {
  std::string container;
  std::string name;

  bool operator<(const VariableKey& other) const {
    return container != other.container ? container < other.container : name < other.name;
  }
};

// Returns the variables that each request on some signature reads, by the VarHandleOps of the
// graph.
//
// Walks back from the signatures' outputs through the functions that they call, and follows only
// needed inputs: it skips an argument that a function does not use. It also skips branches (If,
// Case, Switch), because a request may never take them. So in doubt a variable is left out.
std::set<VariableKey> ReadVariables(const tensorflow::MetaGraphDef& meta_graph);

// Returns the names of the `variables` for which no device of `session` holds a value.
std::set<std::string> VariablesWithoutValue(const std::set<VariableKey>& variables,
                                            tensorflow::Session* session);

}  // namespace millpond::tf
