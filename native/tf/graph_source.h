#pragma once

#include <map>
#include <string>

#include "native/base/status.h"

namespace tensorflow {
class Graph;
class Node;
}  // namespace tensorflow

namespace millpond::tf {

// A tensor of a graph: an output of a node.
struct Source {
  tensorflow::Node* node = nullptr;
  int output = 0;
};

using NodesByName = std::map<std::string, tensorflow::Node*>;

NodesByName NodesOf(const tensorflow::Graph& graph);

// Returns the tensor of a name like "node" or "node:1", and NOT_FOUND if the graph lacks it.
base::StatusOr<Source> FindSource(const NodesByName& nodes, const std::string& tensor);

// Makes all that reads `from` read output 0 of `to` instead.
void RedirectReaders(const Source& from, tensorflow::Node* to, tensorflow::Graph* graph);

}  // namespace millpond::tf
