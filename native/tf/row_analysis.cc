#include "native/tf/row_analysis.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/tf/graph_names.h"
#include "native/tf/graph_walk.h"
#include "native/tf/row_node.h"
#include "native/tf/row_value.h"
#include "tensorflow/cc/saved_model/constants.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

using tensor::RowVerdict;
using tensorflow::FunctionDef;
using tensorflow::MetaGraphDef;
using tensorflow::NodeDef;
using tensorflow::SignatureDef;
using Kind = RowValue::Kind;
using Values = std::vector<RowValue>;

// The most nodes that are looked at for a signature, which takes about 2 s. The nodes of a function
// count once for each call.
constexpr int64_t kNodesMax = 200'000;
// The depth of calls within calls. A function that calls itself ends here.
constexpr int kDepthMax = 100;
// The turns of a loop until its values change no more. In each turn but the last, at least one more
// value becomes unknown, and few values change one after the other.
constexpr int kTurnsMax = 20;
// The most integers of a constant that are followed one by one.
constexpr int64_t kIntegersMax = 1024;

RowCause CauseOf(const NodeDef& node, std::string reason) {
  return {node.name(), node.op(), std::move(reason)};
}
Values Unknown(const NodeDef& node, std::string reason, size_t count = 1) {
  return Values(count, RowValue::Of(Kind::kUnknown, CauseOf(node, std::move(reason))));
}

template <typename T>
std::vector<Quantity> IntegersOf(const tensorflow::Tensor& tensor) {
  std::vector<Quantity> elements;
  const auto flat = tensor.flat<T>();
  for (int64_t i = 0; i < flat.size(); ++i) elements.push_back(Quantity::Known(flat(i)));
  return elements;
}

RowValue ConstantOf(const NodeDef& node) {
  RowValue value;
  const auto found = node.attr().find("value");
  if (found == node.attr().end()) return value;
  const tensorflow::TensorProto& proto = found->second.tensor();
  value.dtype = proto.dtype();
  value.has_rank = !proto.tensor_shape().unknown_rank();
  int64_t count = 1;
  for (const auto& dim : proto.tensor_shape().dim()) {
    value.dims.push_back(Quantity::Known(dim.size()));
    count = count > kIntegersMax ? count : count * dim.size();
  }
  const bool has_integers =
      value.dtype == tensorflow::DT_INT32 || value.dtype == tensorflow::DT_INT64;
  tensorflow::Tensor tensor;
  if (!has_integers || count > kIntegersMax || !tensor.FromProto(proto)) return value;
  value.elements = value.dtype == tensorflow::DT_INT32 ? IntegersOf<int32_t>(tensor)
                                                       : IntegersOf<int64_t>(tensor);
  return value;
}

// The value of a signature's input: rows, of the shape that the signature names.
RowValue InputOf(const tensorflow::TensorInfo& info) {
  RowValue value;
  value.kind = Kind::kRows;
  value.dtype = info.dtype();
  value.has_rank = info.has_tensor_shape() && !info.tensor_shape().unknown_rank();
  if (!value.has_rank) return value;
  for (const auto& dim : info.tensor_shape().dim()) {
    value.dims.push_back(dim.size() >= 0 ? Quantity::Known(dim.size()) : Quantity());
  }
  if (value.dims.empty()) {
    return RowValue::Of(Kind::kUnknown, {info.name(), "input", "has no dimension for rows"});
  }
  value.dims.front() = Quantity::Rows();
  return value;
}

// The choices of a run that may leave a node out, made by the Switch nodes before it. In TensorFlow
// 1 a node that is left out leaves out the nodes behind it, along data and control edges alike,
// until a Merge.
struct Choices {
  bool are_some = false;
  // the values, besides fixed ones, by which a run may choose, if there are any
  std::shared_ptr<const RowValue> unfixed;
};

bool IsSwitch(const NodeDef& node) {
  return node.op() == "Switch" || node.op() == "RefSwitch" || node.op() == "_SwitchN";
}
bool IsMerge(const NodeDef& node) { return node.op() == "Merge" || node.op() == "RefMerge"; }
// Returns true if a node exists only to fail requests.
bool IsAssertion(const NodeDef& node) {
  return node.op() == "Assert" || node.op() == "CheckNumerics" || node.op() == "CheckNumericsV2";
}

// A graph or the body of a function, with the values of its nodes as far as they were asked for.
struct Scope {
  void Add(const NodeDef& node) {
    nodes[node.name()] = &node;
    has_merges = has_merges || IsMerge(node);
    has_switches = has_switches || IsSwitch(node);
  }

  std::unordered_map<std::string_view, const NodeDef*> nodes;
  std::unordered_map<std::string_view, RowValue> arguments;  // by name; of a graph by "node:0"
  std::unordered_map<std::string_view, Values> values;
  std::unordered_map<std::string_view, Choices> choices;  // if it has merges
  bool has_merges = false;
  bool has_switches = false;
  bool is_function = false;
  int depth = 0;
};

class Walk {
 public:
  explicit Walk(const GraphWalk& graph) : graph_(graph) {}

  // Returns the value of a tensor like "node", "node:1" or, in a function, "node:out:0".
  RowValue ValueOf(const std::string& tensor, Scope* scope) {
    const std::string_view name = NodeOf(tensor);
    if (const RowValue* argument = ArgumentOf(tensor, *scope)) return *argument;
    if (scope->values.count(name) == 0) EvaluateUpTo(name, scope);
    const auto node = scope->nodes.find(name);
    const auto found = scope->values.find(name);
    if (node == scope->nodes.end() || found == scope->values.end()) {
      return RowValue::Of(Kind::kUnknown, {std::string(name), "?", "is not in the graph"});
    }
    const size_t index = IndexOf(tensor, *node->second, *scope);
    if (index < found->second.size()) return found->second[index];
    // A node with an unknown number of outputs has one value for all of them.
    if (!found->second.empty() && found->second.front().cause != nullptr) {
      return RowValue::Of(found->second.front().kind, *found->second.front().cause);
    }
    return Unknown(*node->second, "has an output that is not known").front();
  }

  // Looks at the assertions that a run of `tensors` computes.
  void CheckAssertions(const std::vector<std::string>& tensors, Scope* graph) {
    std::vector<std::string_view> left(tensors.begin(), tensors.end());
    std::set<std::string_view> seen;
    std::vector<const NodeDef*> nodes;
    while (!left.empty()) {
      const auto node = graph->nodes.find(NodeOf(left.back()));
      left.pop_back();
      if (node == graph->nodes.end() || !seen.insert(node->first).second) continue;
      nodes.push_back(node->second);
      left.insert(left.end(), node->second->input().begin(), node->second->input().end());
    }
    for (const NodeDef* node : nodes) CheckAssertionsOf(*node, graph);
  }
  // The first assertion that may fail for a row alone although it holds beside other rows.
  const std::optional<RowCause>& unlike_assertion() const { return unlike_assertion_; }

 private:
  static const RowValue* ArgumentOf(const std::string& tensor, const Scope& scope) {
    if (scope.arguments.empty()) return nullptr;
    std::string name = tensor;
    if (!scope.is_function && name.find(':') == std::string::npos) name += ":0";
    if (scope.is_function) name = std::string(NodeOf(tensor));
    const auto found = scope.arguments.find(name);
    return found == scope.arguments.end() ? nullptr : &found->second;
  }

  // Evaluates the nodes that `name` needs, each after its inputs, without a recursion: graphs may
  // be deep. A node of a cycle of TensorFlow 1 finds an input without a value. If there are merges,
  // a node needs its control inputs too: these choose whether it runs.
  void EvaluateUpTo(std::string_view name, Scope* scope) {
    std::vector<std::pair<const NodeDef*, int>> path;
    std::unordered_map<std::string_view, bool> is_begun;
    const auto enter = [&](std::string_view wanted) {
      const auto node = scope->nodes.find(wanted);
      if (node == scope->nodes.end() || scope->values.count(wanted) > 0) return;
      if (is_begun.emplace(node->first, true).second) path.emplace_back(node->second, 0);
    };
    enter(name);
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next < node->input_size()) {
        const std::string& input = node->input(next++);
        const bool is_needed =
            IsControl(input) ? scope->has_merges : ArgumentOf(input, *scope) == nullptr;
        if (is_needed) enter(NodeOf(input));
        continue;
      }
      const NodeDef& ready = *node;
      path.pop_back();
      if (scope->has_merges) scope->choices[ready.name()] = ChoicesOf(ready, scope);
      scope->values[ready.name()] = Evaluate(ready, scope);
    }
  }

  RowValue InputValue(const NodeDef& node, const std::string& tensor, Scope* scope) {
    if (const RowValue* argument = ArgumentOf(tensor, *scope)) return *argument;
    if (scope->values.count(NodeOf(tensor)) == 0) {
      return Unknown(node, "is part of a loop of TensorFlow 1, or takes what is not there").front();
    }
    return ValueOf(tensor, scope);
  }

  Values Evaluate(const NodeDef& node, Scope* scope) {
    if (--nodes_left_ < 0) return NotFollowed(node, "comes after more nodes than are looked at");
    if (node.op() == "Const") return {ConstantOf(node)};
    Values inputs;
    for (const std::string& input : node.input()) {
      if (!IsControl(input)) inputs.push_back(InputValue(node, input, scope));
    }
    if (node.op() == "Placeholder") return Unknown(node, "is no input of the signature");
    if (node.op() == "PlaceholderWithDefault" && inputs.size() == 1) return inputs;
    if (node.op() == "Switch" || node.op() == "RefSwitch") return SwitchOf(node, inputs);
    if (IsMerge(node)) return MergeOf(node, inputs, *scope);
    const std::vector<tf::Call> calls = graph_.CallsOf(node);
    const bool is_case = node.op() == "Case" || node.op() == "StatelessCase";
    if (is_case && calls.empty()) return NotFollowed(node, "has no branches");
    if (calls.empty()) {
      NoteIfAsserts(node);
      return Apply(node, inputs);
    }
    if (calls.front().is_branch) return Branch(node, calls, inputs, scope->depth);
    const bool is_loop = calls.size() > 1;
    if (is_loop) return Loop(node, calls, std::move(inputs), scope->depth);
    return Call(node, calls.front().function, inputs, scope->depth);
  }

  static Values Apply(const NodeDef& node, const Values& inputs) {
    const tensorflow::OpDef* op = nullptr;
    if (!tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok()) {
      return Unknown(node, "is not a registered op");
    }
    NodeDef whole = node;
    tensorflow::AddDefaultsToNodeDef(*op, &whole);
    // TensorFlow itself looks into the body of a function only once it is called.
    if (!tensorflow::ValidateNodeDef(whole, *op).ok()) return Unknown(node, "is not valid");
    Values outputs = ApplyRule(RowNode(whole, *op, inputs));
    return outputs.empty() ? Unknown(node, "has no output") : outputs;
  }

  // --- Functions ---

  Values Call(const NodeDef& node, const std::string& name, const Values& inputs, int depth) {
    const FunctionDef* const found = graph_.FindFunction(name);
    if (found == nullptr) return NotFollowed(node, "calls a function that is not there");
    if (depth >= kDepthMax) return NotFollowed(node, "calls too deep");
    const FunctionDef& function = *found;
    if (function.signature().input_arg_size() != static_cast<int>(inputs.size())) {
      return NotFollowed(node, "calls a function of other arguments");
    }
    Scope body;
    body.is_function = true;
    body.depth = depth + 1;
    for (const NodeDef& inside : function.node_def()) body.Add(inside);
    for (size_t i = 0; i < inputs.size(); ++i) {
      body.arguments[function.signature().input_arg(static_cast<int>(i)).name()] = inputs[i];
    }
    Values outputs;
    for (const auto& output : function.signature().output_arg()) {
      const auto tensor = function.ret().find(output.name());
      if (tensor == function.ret().end())
        return NotFollowed(node, "calls a function without a result");
      outputs.push_back(ValueOf(tensor->second, &body));
    }
    if (Asserts(name)) {
      for (const NodeDef& inside : function.node_def()) CheckAssertionsOf(inside, &body);
    }
    return outputs;
  }

  // --- Control flow ---

  // Returns the value of everything that `by` chooses, unless `by` is fixed and so chooses the same
  // in every run.
  static std::optional<RowValue> ChosenBy(const NodeDef& node, const RowValue& by) {
    if (by.Has(Kind::kFixed)) return std::nullopt;
    // Leaves out what holds for `by` alone: that it is a scalar, and its bound.
    if (by.cause != nullptr) return RowValue::Of(by.kind, *by.cause);
    return RowValue::Of(Kind::kMixed,
                        CauseOf(node, by.IsRows() ? "chooses for all rows by what one of them has"
                                                  : "chooses by the number of rows"));
  }

  static Values SwitchOf(const NodeDef& node, const Values& inputs) {
    if (inputs.size() != 2) return Unknown(node, "has other inputs", 2);
    const auto chosen = ChosenBy(node, inputs[1]);
    Values outputs(2, chosen ? *chosen : inputs[0]);
    // This side is taken if the check failed.
    if (chosen && inputs[1].fold == Fold::kAll) outputs[0].fold = inputs[0].fold;
    return outputs;
  }

  // Returns the choices behind an input of `node`.
  static Choices ChoicesBehind(const NodeDef& node, const std::string& input, const Scope& scope) {
    const bool is_given = !IsControl(input) && ArgumentOf(input, scope) != nullptr;
    if (is_given || scope.nodes.count(NodeOf(input)) == 0) return {};
    const auto found = scope.choices.find(NodeOf(input));
    if (found != scope.choices.end()) return found->second;
    const RowValue unknown = Unknown(node, "is part of a loop of TensorFlow 1").front();
    return {true, std::make_shared<const RowValue>(unknown)};
  }

  // The values of the node's inputs must be known.
  Choices ChoicesOf(const NodeDef& node, Scope* scope) {
    Choices all;
    const auto add = [&all](const Choices& more) {
      all.are_some = all.are_some || more.are_some;
      const bool is_worse =
          more.unfixed != nullptr && (all.unfixed == nullptr || !all.unfixed->Has(Kind::kMixed));
      if (is_worse) all.unfixed = more.unfixed;
    };
    for (const std::string& input : node.input()) add(ChoicesBehind(node, input, *scope));
    if (!IsSwitch(node) || node.input_size() < 2) return all;
    Choices own{true, nullptr};
    if (const auto chosen = ChosenBy(node, InputValue(node, node.input(1), scope))) {
      own.unfixed = std::make_shared<const RowValue>(*chosen);
    }
    add(own);
    return all;
  }

  // A Merge is the branch that was not left out. It is the same branch in every run if all choices
  // before it are the same.
  static Values MergeOf(const NodeDef& node, const Values& inputs, const Scope& scope) {
    if (inputs.empty()) return Unknown(node, "has no input", 2);
    for (const std::string& input : node.input()) {
      if (IsControl(input)) continue;
      const Choices choices = ChoicesBehind(node, input, scope);
      if (!choices.are_some) return Unknown(node, "has a branch that no Switch chooses", 2);
      if (choices.unfixed != nullptr) return Values(2, *choices.unfixed);
    }
    RowValue merged = inputs[0];
    for (const RowValue& input : inputs) {
      merged = Join(merged, input, CauseOf(node, "has branches with and without rows"));
    }
    return {merged, merged.cause != nullptr ? merged : RowValue::Fixed()};
  }

  Values Branch(const NodeDef& node, const std::vector<tf::Call>& branches, const Values& inputs,
                int depth) {
    if (inputs.empty()) return NotFollowed(node, "has no branches");
    const Values arguments(inputs.begin() + 1, inputs.end());
    Values outputs;
    for (const tf::Call& branch : branches) {
      const Values of_branch = Call(node, branch.function, arguments, depth);
      if (outputs.empty()) outputs = of_branch;
      if (outputs.size() != of_branch.size()) return NotFollowed(node, "has branches that differ");
      for (size_t i = 0; i < outputs.size(); ++i) {
        outputs[i] =
            Join(outputs[i], of_branch[i], CauseOf(node, "has branches with and without rows"));
      }
    }
    if (const auto chosen = ChosenBy(node, inputs.front())) {
      // If a check fails for a row alone, it fails for all rows together, so all take the branch of
      // the failure.
      const bool fails_alike = branches.size() == 2 && inputs.front().fold == Fold::kAll &&
                               !Asserts(branches.front().function);
      if (!fails_alike) NoteIfAsserts(node);
      return Values(std::max<size_t>(1, outputs.size()), *chosen);
    }
    return outputs;
  }

  // `calls` are the condition and the body.
  Values Loop(const NodeDef& node, const std::vector<tf::Call>& calls, Values state, int depth) {
    for (int turn = 0; turn < kTurnsMax; ++turn) {
      const Values goes_on = Call(node, calls.front().function, state, depth);
      const Values next = Call(node, calls.back().function, state, depth);
      if (goes_on.size() != 1 || next.size() != state.size()) {
        return Unknown(node, "has a body that is not followed", std::max<size_t>(1, state.size()));
      }
      if (!goes_on.front().Has(Kind::kFixed)) NoteIfAsserts(node);
      if (goes_on.front().Has(Kind::kCount)) {
        return Unknown(node, "takes as many turns as there are rows", state.size());
      }
      if (const auto chosen = ChosenBy(node, goes_on.front())) return Values(state.size(), *chosen);
      bool has_changed = false;
      for (size_t i = 0; i < state.size(); ++i) {
        RowValue joined = Join(state[i], next[i], CauseOf(node, "changes what a value is made of"));
        has_changed = has_changed || !AreEqual(joined, state[i]);
        state[i] = std::move(joined);
      }
      if (!has_changed) return state;
    }
    return Unknown(node, "changes what its values are made of, again and again",
                   std::max<size_t>(1, state.size()));
  }

  // --- Assertions ---

  // The values of a node whose calls are not followed to the end: what they assert is not known.
  Values NotFollowed(const NodeDef& node, std::string reason) {
    NoteIfAsserts(node);
    return Unknown(node, std::move(reason));
  }

  // A request whose check fails has to get its error beside other rows too. That holds if the check
  // is one of all rows, and if it takes place for all when it does for one of them.

  void CheckAssertionsOf(const NodeDef& node, Scope* scope) {
    if (!IsAssertion(node)) {
      const std::vector<std::string> called = graph_.FunctionsOf(node);
      const bool asserts = std::any_of(called.begin(), called.end(),
                                       [this](const std::string& name) { return Asserts(name); });
      if (!asserts) return;
      EvaluateUpTo(node.name(), scope);  // which looks at the calls, or notes that it does not
      if (!RunsAlike(node, scope)) Note(node);
      return;
    }
    const bool has_input = node.input_size() > 0 && !IsControl(node.input(0));
    const RowValue condition =
        has_input ? ValueOf(node.input(0), scope) : Unknown(node, "has no condition").front();
    const bool is_of_all = condition.Has(Kind::kFixed) || condition.fold == Fold::kAll ||
                           (node.op() != "Assert" && condition.IsRows());
    if (!is_of_all || !RunsAlike(node, scope)) Note(node);
  }

  // Returns true if a node of TensorFlow 1 that runs for a row alone also runs for it beside other
  // rows.
  bool RunsAlike(const NodeDef& node, Scope* scope) {
    if (!scope->has_switches) return true;
    std::vector<const NodeDef*> left = {&node};
    std::set<const NodeDef*> seen;
    while (!left.empty()) {
      const NodeDef& at = *left.back();
      left.pop_back();
      for (const std::string& input : at.input()) {
        const auto source = scope->nodes.find(NodeOf(input));
        if (source == scope->nodes.end()) continue;
        if (IsSwitch(*source->second) && !ChoosesAlike(*source->second, input, scope)) return false;
        if (seen.insert(source->second).second) left.push_back(source->second);
      }
    }
    return true;
  }
  bool ChoosesAlike(const NodeDef& choice, const std::string& side, Scope* scope) {
    if (choice.input_size() < 2 || IsControl(choice.input(1))) return false;
    const RowValue by = ValueOf(choice.input(1), scope);
    const bool is_of_failed = !IsControl(side) && IndexOf(side, choice, *scope) == 0;
    return by.Has(Kind::kFixed) || (by.fold == Fold::kAll && is_of_failed);
  }

  // Returns true if a function has an assertion, or calls one that has, or itself.
  bool Asserts(const std::string& name) {
    const auto [known, is_new] = asserting_.emplace(name, true);
    if (!is_new) return known->second;
    const FunctionDef* const function = graph_.FindFunction(name);
    const auto asserts = [this](const NodeDef& node) {
      const std::vector<std::string> called = graph_.FunctionsOf(node);
      return IsAssertion(node) ||
             std::any_of(called.begin(), called.end(),
                         [this](const std::string& inner) { return Asserts(inner); });
    };
    return asserting_[name] =
               function != nullptr &&
               std::any_of(function->node_def().begin(), function->node_def().end(), asserts);
  }

  void Note(const NodeDef& node) {
    if (!unlike_assertion_) {
      unlike_assertion_ = CauseOf(node, "may fail for a row alone and not beside others");
    }
  }
  void NoteIfAsserts(const NodeDef& node) {
    for (const std::string& called : graph_.FunctionsOf(node)) {
      if (Asserts(called)) Note(node);
    }
  }

  // --- Names ---

  // Returns the index of `tensor` among the outputs of `node`.
  size_t IndexOf(const std::string& tensor, const NodeDef& node, const Scope& scope) const {
    const size_t colon = tensor.find(':');
    if (colon == std::string::npos) return 0;
    const size_t last = tensor.rfind(':');
    const std::string number = tensor.substr(last + 1);
    const bool is_number =
        !number.empty() && number.size() < 9 &&
        std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
    const size_t at = is_number ? std::stoul(number) : 0;
    if (!scope.is_function || last == colon) return at;
    return FirstOf(tensor.substr(colon + 1, last - colon - 1), node) + at;
  }

  size_t FirstOf(const std::string& output, const NodeDef& node) const {
    const tensorflow::OpDef* op = nullptr;
    const FunctionDef* const function = graph_.FindFunction(node.op());
    if (function != nullptr) op = &function->signature();
    const bool is_known =
        op != nullptr || tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok();
    if (!is_known) return 0;
    NodeDef whole = node;
    if (node.op() != "Const") tensorflow::AddDefaultsToNodeDef(*op, &whole);
    tensorflow::NameRangeMap ranges;
    if (!tensorflow::NameRangesForNode(tensorflow::AttrSlice(whole), *op, nullptr, &ranges).ok()) {
      return 0;
    }
    auto range = ranges.find(output);
    return range == ranges.end() ? 0 : static_cast<size_t>(range->second.first);
  }

  const GraphWalk& graph_;
  int64_t nodes_left_ = kNodesMax;
  std::map<std::string, bool> asserting_;
  std::optional<RowCause> unlike_assertion_;
};

RowVerdict::Kind KindOf(const RowValue& value) {
  return value.Has(Kind::kMixed) ? RowVerdict::Kind::kMixes : RowVerdict::Kind::kUnknown;
}

std::string Describe(const RowCause& cause) {
  return "node '" + cause.node + "' (" + cause.op + ") " + cause.reason;
}

RowVerdict VerdictOf(const std::string& output, const RowValue& value) {
  if (value.IsRows() && value.axis == 0 && value.factor == 1) {
    return {RowVerdict::Kind::kIndependent, ""};
  }
  const std::string begin = "output '" + output + "': ";
  if (value.cause != nullptr) return {KindOf(value), begin + Describe(*value.cause)};
  if (value.IsRows()) return {RowVerdict::Kind::kUnknown, begin + "its rows are not the inputs'"};
  return {RowVerdict::Kind::kUnknown, begin + "it depends on no row of the inputs"};
}

// The graph, with the inputs of `signature` as its arguments.
Scope ScopeOf(const MetaGraphDef& meta_graph, const SignatureDef& signature) {
  Scope graph;
  for (const NodeDef& node : meta_graph.graph_def().node()) graph.Add(node);
  for (const auto& [name, info] : signature.inputs()) graph.arguments[info.name()] = InputOf(info);
  return graph;
}

RowVerdict AnalyzeSignature(const MetaGraphDef& meta_graph, const SignatureDef& signature,
                            const GraphWalk& walked) {
  Scope graph = ScopeOf(meta_graph, signature);
  Walk walk(walked);
  RowVerdict worst{RowVerdict::Kind::kIndependent, ""};
  std::vector<std::string> fetched;
  // Sorted, so that the same graph always gives the same reason.
  const std::map<std::string, tensorflow::TensorInfo> outputs(signature.outputs().begin(),
                                                              signature.outputs().end());
  for (const auto& [name, info] : outputs) {
    if (info.name().empty()) continue;  // a composite output, which no run computes
    RowVerdict verdict = VerdictOf(name, walk.ValueOf(info.name(), &graph));
    if (verdict.kind > worst.kind) worst = std::move(verdict);
    fetched.push_back(info.name());
  }
  if (worst.kind != RowVerdict::Kind::kIndependent) return worst;
  walk.CheckAssertions(fetched, &graph);
  const auto& assertion = walk.unlike_assertion();
  return assertion ? RowVerdict{RowVerdict::Kind::kUnknown, Describe(*assertion)} : worst;
}

}  // namespace

tensor::RowVerdicts AnalyzeRows(const MetaGraphDef& meta_graph) {
  const GraphWalk graph(meta_graph);
  tensor::RowVerdicts verdicts;
  for (const auto& [name, signature] : meta_graph.signature_def()) {
    if (name == tensorflow::kSavedModelInitOpSignatureKey) continue;
    verdicts[name] = AnalyzeSignature(meta_graph, signature, graph);
  }
  return verdicts;
}

std::vector<RowValue> AnalyzeTensors(const MetaGraphDef& meta_graph, const SignatureDef& signature,
                                     const std::vector<std::string>& tensors) {
  const GraphWalk walked(meta_graph);
  Scope graph = ScopeOf(meta_graph, signature);
  Walk walk(walked);
  std::vector<RowValue> values;
  for (const std::string& tensor : tensors) values.push_back(walk.ValueOf(tensor, &graph));
  return values;
}

}  // namespace millpond::tf
