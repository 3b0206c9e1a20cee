#include "native/tf/graph_source.h"

#include <charconv>
#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace millpond::tf {

using tensorflow::Edge;
using tensorflow::Node;

NodesByName NodesOf(const tensorflow::Graph& graph) {
  NodesByName nodes;
  for (Node* const node : graph.op_nodes()) nodes[node->name()] = node;
  return nodes;
}

base::StatusOr<Source> FindSource(const NodesByName& nodes, const std::string& tensor) {
  const size_t colon = tensor.find(':');
  const auto node = nodes.find(tensor.substr(0, colon));
  if (node == nodes.end()) return base::NotFound("the graph has no tensor '" + tensor + "'");
  Source source{node->second, 0};
  if (colon != std::string::npos) {
    const char* const end = tensor.data() + tensor.size();
    const auto read = std::from_chars(tensor.data() + colon + 1, end, source.output);
    if (read.ec != std::errc() || read.ptr != end) source.output = -1;
  }
  if (source.output < 0 || source.output >= source.node->num_outputs()) {
    return base::NotFound("the graph has no tensor '" + tensor + "'");
  }
  return source;
}

void RedirectReaders(const Source& from, Node* to, tensorflow::Graph* graph) {
  const std::vector<const Edge*> edges(from.node->out_edges().begin(),
                                       from.node->out_edges().end());
  for (const Edge* const edge : edges) {
    if (edge->IsControlEdge() || edge->src_output() != from.output) continue;
    Node* const reader = edge->dst();
    const int input = edge->dst_input();
    graph->RemoveEdge(edge);
    graph->AddEdge(to, 0, reader, input);
  }
}

}  // namespace millpond::tf
