#include "native/tf/flat_signature.h"

#include <string>
#include <unordered_set>

#include "native/tf/graph_source.h"
#include "native/tf/status.h"
#include "tensorflow/core/common_runtime/function_body.h"
#include "tensorflow/core/common_runtime/function_def_utils.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/common_runtime/inline_function_utils.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

// The most calls that are put in their places, in case a function calls itself.
constexpr int kCallsMax = 10'000;

StatusOr<Node*> AddNode(const std::string& name, const char* op, const char* dtype_attribute,
                        int dtype, Graph* graph) {
  tensorflow::NodeDef definition;
  definition.set_name(name);
  definition.set_op(op);
  (*definition.mutable_attr())[dtype_attribute].set_type(static_cast<tensorflow::DataType>(dtype));
  absl::Status added;
  Node* const node = graph->AddNode(definition, &added);
  MILLPOND_RETURN_IF_TF_ERROR(added, "adding '" + name + "'");
  return node;
}

Status AddOutputs(const tensor::Signature& signature, FlatSignature* flat) {
  const NodesByName nodes = NodesOf(*flat->graph);
  for (const tensor::TensorSpec& output : signature.outputs) {
    const StatusOr<Source> source = FindSource(nodes, output.tensor_name);
    if (!source.ok()) return source.status();
    const StatusOr<Node*> added =
        AddNode("millpond_output_" + std::to_string(flat->outputs.size()), "Identity", "T",
                source.value().node->output_type(source.value().output), flat->graph.get());
    if (!added.ok()) return added.status();
    flat->graph->AddEdge(source.value().node, source.value().output, added.value(), 0);
    flat->outputs.push_back(added.value());
  }
  return {};
}

Status AddInputs(const tensor::Signature& signature, FlatSignature* flat) {
  const NodesByName nodes = NodesOf(*flat->graph);
  for (const tensor::TensorSpec& input : signature.inputs) {
    const StatusOr<Source> source = FindSource(nodes, input.tensor_name);
    if (!source.ok()) return source.status();
    const StatusOr<Node*> added =
        AddNode("millpond_input_" + std::to_string(flat->inputs.size()), "Placeholder", "dtype",
                source.value().node->output_type(source.value().output), flat->graph.get());
    if (!added.ok()) return added.status();
    RedirectReaders(source.value(), added.value(), flat->graph.get());
    // Nothing waits for a placeholder of the model, which would fail because it is not fed.
    if (source.value().node->type_string() == "Placeholder") {
      const std::vector<const Edge*> edges(source.value().node->out_edges().begin(),
                                           source.value().node->out_edges().end());
      for (const Edge* const edge : edges) flat->graph->RemoveEdge(edge);
    }
    flat->inputs.push_back(added.value());
  }
  return {};
}

// Returns the function that a node calls, with its attributes; null if it is no call.
const tensorflow::FunctionDef* CalledBy(const Node& node,
                                        const tensorflow::FunctionLibraryDefinition& functions,
                                        tensorflow::NameAttrList* call) {
  if (node.type_string() == "PartitionedCall" || node.type_string() == "StatefulPartitionedCall") {
    return GetNodeAttr(node.attrs(), "f", call).ok() ? functions.Find(call->name()) : nullptr;
  }
  *call->mutable_attr() = node.def().attr();
  return functions.Find(node.type_string());
}

// Puts an IdentityN out of the way, which TensorFlow leaves in the place of a call. It would tie
// each of its outputs to all of its inputs.
void Dissolve(Node* identity, Graph* graph) {
  std::vector<const Edge*> sources(identity->num_inputs(), nullptr);
  std::vector<Node*> before;
  for (const Edge* const edge : identity->in_edges()) {
    if (edge->IsControlEdge()) {
      before.push_back(edge->src());
    } else {
      sources[edge->dst_input()] = edge;
    }
  }
  const std::vector<const Edge*> readers(identity->out_edges().begin(),
                                         identity->out_edges().end());
  for (const Edge* const edge : readers) {
    Node* const reader = edge->dst();
    if (reader->IsSink()) continue;
    for (Node* const node : before) graph->AddControlEdge(node, reader);
    if (edge->IsControlEdge()) {
      for (const Edge* const source : sources) graph->AddControlEdge(source->src(), reader);
      continue;
    }
    const Edge& source = *sources[edge->src_output()];
    const int input = edge->dst_input();
    graph->RemoveEdge(edge);
    graph->AddEdge(source.src(), source.src_output(), reader, input);
  }
  graph->RemoveNode(identity);
}

// Puts the body of the function in the place of a call. Returns false if TensorFlow refuses that.
bool PutInPlace(Node* caller, const tensorflow::FunctionDef& function,
                const tensorflow::NameAttrList& call, FlatSignature* flat) {
  std::unique_ptr<tensorflow::FunctionBody> body;
  if (!FunctionDefToBodyHelper(function, tensorflow::AttrSlice(&call.attr()), flat->functions.get(),
                               &body)
           .ok()) {
    return false;
  }
  using Options = tensorflow::InlineFunctionBodyOptions;
  Options options;
  options.ignore_noinline = true;
  options.inline_impl_selection_group_functions = true;
  options.keep_caller_node = Options::KeepCallerNode::kFetchable;
  options.output_control_src = Options::OutputControlSource::kControlOutputs;
  const std::string name = caller->name();
  if (!InlineFunctionBody(*flat->functions, flat->graph.get(), caller, body.get(), options).ok()) {
    return false;
  }
  for (Node* const node : flat->graph->op_nodes()) {
    if (node->type_string() != "IdentityN" || node->name() != name) continue;
    Dissolve(node, flat->graph.get());
    break;
  }
  return true;
}

void PutCallsInPlace(FlatSignature* flat) {
  std::unordered_set<std::string> kept;  // calls that stay
  for (int i = 0; i < kCallsMax; ++i) {
    bool has_changed = false;
    for (Node* const node : flat->graph->op_nodes()) {
      tensorflow::NameAttrList call;
      const tensorflow::FunctionDef* const function = CalledBy(*node, *flat->functions, &call);
      if (function == nullptr || kept.count(node->name()) > 0) continue;
      const std::string name = node->name();
      has_changed = PutInPlace(node, *function, call, flat);
      if (has_changed) break;  // the nodes are others now
      kept.insert(name);
    }
    if (!has_changed) return;
  }
}

}  // namespace

StatusOr<FlatSignature> FlatSignature::Make(const tensorflow::MetaGraphDef& meta_graph,
                                            const tensor::Signature& signature) {
  FlatSignature flat;
  flat.functions = std::make_unique<tensorflow::FunctionLibraryDefinition>(
      tensorflow::OpRegistry::Global(), tensorflow::FunctionDefLibrary());
  MILLPOND_RETURN_IF_TF_ERROR(flat.functions->AddLibrary(meta_graph.graph_def().library()),
                              "reading the graph's functions");
  flat.graph = std::make_unique<Graph>(*flat.functions);
  tensorflow::GraphConstructorOptions options;
  options.allow_internal_ops = true;
  MILLPOND_RETURN_IF_TF_ERROR(
      ConvertGraphDefToGraph(options, meta_graph.graph_def(), flat.graph.get()),
      "reading the graph");
  MILLPOND_RETURN_IF_ERROR(AddOutputs(signature, &flat));
  MILLPOND_RETURN_IF_ERROR(AddInputs(signature, &flat));
  std::unordered_set<const Node*> needed(flat.outputs.begin(), flat.outputs.end());
  needed.insert(flat.inputs.begin(), flat.inputs.end());
  PruneForReverseReachability(flat.graph.get(), needed);
  PutCallsInPlace(&flat);
  PruneForReverseReachability(flat.graph.get(), needed);
  return flat;
}

}  // namespace millpond::tf
