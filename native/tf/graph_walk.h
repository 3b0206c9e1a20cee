#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tensorflow {
class AttrValue;
class FunctionDef;
class MetaGraphDef;
class NodeDef;
}  // namespace tensorflow

namespace millpond::tf {

// The functions that a node calls, with its inputs from `first_input` on as their arguments.
struct Call {
  std::string function;
  size_t first_input = 0;
  bool is_branch = false;  // a run may not take it
};

// Walks back through a graph and its functions. Borrows the graph.
class GraphWalk {
 public:
  // Takes a node of `function`, which is "" for the graph itself. Returns false to end the walk
  // there: its inputs, and the functions that it calls, are then not visited.
  using Look = std::function<bool(const tensorflow::NodeDef& node, const std::string& function)>;
  using Tensors = std::vector<std::string>;

  explicit GraphWalk(const tensorflow::MetaGraphDef& meta_graph);

  // Visits the nodes that each run of `tensors` computes, once each. Follows only needed inputs: it
  // skips an argument that a function does not use. It does not enter branches (If, Case). So a
  // node is left out if there is a doubt.
  void VisitNeeded(const Tensors& tensors, const Look& look) const;

  // Visits the same nodes, and the nodes in branches that TensorFlow lowers to its older control
  // flow, because a run has their kernels whatever branch it takes. TensorFlow may find out before
  // the run that a branch is never taken, and then leaves it out.
  void VisitBuilt(const Tensors& tensors, const Look& look) const;

  // Visits the nodes that the values of `tensors` may depend on, and the outcome of assertions,
  // once each. Enters branches. Follows control inputs only before a Merge of TensorFlow 1, and
  // before an assertion if its graph has a Switch: there they choose what runs.
  void VisitSources(const Tensors& tensors, const Look& look) const;

  // Visits the nodes that a run of `tensors` may compute, whatever branches it takes, once each.
  // All nodes of a function that is called are visited.
  void VisitReachable(const Tensors& tensors, const Look& look) const;

  // Returns a function of the graph, or null.
  const tensorflow::FunctionDef* FindFunction(std::string_view name) const;
  // Returns a node of a function, or of the graph for "", or null.
  const tensorflow::NodeDef* FindNode(const std::string& function, std::string_view name) const;

  // Returns the functions that a node calls with its inputs. Other functions of its attributes may
  // get other arguments.
  std::vector<Call> CallsOf(const tensorflow::NodeDef& node) const;
  // Returns the names of all functions in a node's attributes, and its op if it is one.
  std::vector<std::string> FunctionsOf(const tensorflow::NodeDef& node) const;

 private:
  class BackWalk;
  using Nodes = std::unordered_map<std::string_view, const tensorflow::NodeDef*>;

  Nodes nodes_;
  std::unordered_map<std::string_view, const tensorflow::FunctionDef*> functions_;
  std::unordered_map<std::string_view, Nodes> function_nodes_;
};

// Returns the tensors that all signatures of a model fetch, without the init op, which runs before
// the version serves. Composite outputs, which no run fetches, are left out.
std::vector<std::string> SignatureOutputs(const tensorflow::MetaGraphDef& meta_graph);

// Returns a text attribute of a node, or "".
std::string TextOf(const tensorflow::NodeDef& node, const char* attribute);

// Returns true if XLA compiles the functions of a node, or the functions with these attributes.
template <typename Attributes>
bool IsCompiledByXla(const Attributes& attributes) {
  const auto found = attributes.find("_XlaMustCompile");
  return found != attributes.end() && found->second.b();
}

}  // namespace millpond::tf
