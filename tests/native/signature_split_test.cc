#include "native/tf/signature_split.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "native/tf/hlo_compiler.h"
#include "native/tf/signature_def.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/native/saved_model_files.h"

namespace millpond::tf {
namespace {

using tensorflow::NodeDef;
using testing::SavedModelFiles;
using testing::SetFloat;

tensor::Signature SignatureOf(SavedModelFiles& files) {
  return MakeSignature("serving_default", files.meta_graph().signature_def().at("serving_default"));
}

base::StatusOr<SignatureSplit> Split(SavedModelFiles& files, const SplitLimits& limits = {}) {
  return SplitSignature(files.meta_graph(), SignatureOf(files), "host/", limits);
}

void DeclareInput(const std::string& name, const std::vector<int64_t>& dims,
                  SavedModelFiles* files) {
  auto& signature = (*files->meta_graph().mutable_signature_def())["serving_default"];
  auto& shape = *signature.mutable_inputs()->at(name).mutable_tensor_shape();
  shape.set_unknown_rank(false);
  for (const int64_t size : dims) shape.add_dim()->set_size(size);
}

std::vector<std::string> NodesOf(const tensorflow::GraphDef& graph) {
  std::vector<std::string> names;
  for (const NodeDef& node : graph.node()) names.push_back(node.name());
  std::sort(names.begin(), names.end());
  return names;
}

void AddBucket(const char* name, const char* text, SavedModelFiles* files) {
  files->AddNode(name, "StringToHashBucketFast", {text},
                 [](NodeDef* node) { (*node->mutable_attr())["num_buckets"].set_i(5); });
}

// score = [x] * v, and bucket = the hash of a text.
SavedModelFiles TwoOutputs() {
  SavedModelFiles files;
  files.AddPlaceholder("x", tensorflow::DT_FLOAT, {-1, 3});
  files.AddPlaceholder("text", tensorflow::DT_STRING, {-1});
  tensorflow::Tensor value(tensorflow::DT_FLOAT, {3});
  value.flat<float>().setConstant(2);
  files.AddVariable("v", value);
  files.AddNode("score", "Mul", {"x", "v/read"}, SetFloat);
  AddBucket("bucket", "text", &files);
  files.AddSignature(
      "serving_default",
      {{"text", "text:0", tensorflow::DT_STRING}, {"x", "x:0", tensorflow::DT_FLOAT}},
      {{"bucket", "bucket:0", tensorflow::DT_INT64}, {"score", "score:0", tensorflow::DT_FLOAT}});
  DeclareInput("x", {-1, 3}, &files);
  DeclareInput("text", {-1}, &files);
  return files;
}

TEST(SignatureSplit, OutputsAreComputedWhereTheyCanBe) {
  SavedModelFiles files = TwoOutputs();
  const auto split = Split(files);
  ASSERT_TRUE(split.ok()) << split.status().message();
  ASSERT_EQ(split.value().outputs.size(), 2);
  EXPECT_FALSE(split.value().outputs[0].is_first);
  EXPECT_TRUE(split.value().outputs[1].is_first);
  EXPECT_EQ(split.value().host_ops, (std::set<std::string>{"StringToHashBucketFast"}));
  ASSERT_EQ(split.value().device_inputs.size(), 1);
  EXPECT_TRUE(split.value().device_inputs[0].is_first);
  EXPECT_EQ(split.value().device_inputs[0].index, 1);
  EXPECT_EQ(split.value().device.inputs[0].dims, (std::vector<int64_t>{-1, 3}));
  const auto compiler = HloCompiler::Make(*split.value().device_graph, split.value().device);
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  EXPECT_EQ(compiler.value()->variables().size(), 1);
  EXPECT_TRUE(compiler.value()->Translate(4).ok());
}

TEST(SignatureSplit, AWholeSignatureHasNoHostPart) {
  SavedModelFiles files = TwoOutputs();
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  signature.mutable_outputs()->erase("bucket");
  const auto split = Split(files);
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_FALSE(split.value().has_host_part());
}

TEST(SignatureSplit, ANodeThatIsBarredStaysOnTheHost) {
  SavedModelFiles files = TwoOutputs();
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  signature.mutable_outputs()->erase("bucket");
  const auto split = Split(files, {{{"score", "is barred"}}, {}});
  EXPECT_EQ(split.status().code(), base::Code::kUnimplemented);
  EXPECT_NE(split.status().message().find("node 'score' (Mul), which is barred"), std::string::npos)
      << split.status().message();
}

TEST(SignatureSplit, AnOutputOfStringsIsNamed) {
  SavedModelFiles files = testing::TableModel();
  const auto split = Split(files);
  EXPECT_EQ(split.status().code(), base::Code::kUnimplemented);
  EXPECT_NE(split.status().message().find("LookupTable"), std::string::npos)
      << split.status().message();
}

// score = reshape(x, [rows of text, 3]), after an assertion on x.
SavedModelFiles CountedModel() {
  SavedModelFiles files = TwoOutputs();
  files.AddNode("shape", "Shape", {"text"}, [](NodeDef* node) {
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_STRING);
    (*node->mutable_attr())["out_type"].set_type(tensorflow::DT_INT32);
  });
  tensorflow::Tensor three(tensorflow::DT_INT32, {1});
  three.flat<int32_t>().setConstant(3);
  files.AddConst("three", three);
  files.AddConst("axis", tensorflow::Tensor(0));
  files.AddNode("size", "ConcatV2", {"shape", "three", "axis"}, [](NodeDef* node) {
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_INT32);
    (*node->mutable_attr())["Tidx"].set_type(tensorflow::DT_INT32);
    (*node->mutable_attr())["N"].set_i(2);
  });
  files.AddNode("shaped", "Reshape", {"score", "size"}, [](NodeDef* node) {
    SetFloat(node);
    (*node->mutable_attr())["Tshape"].set_type(tensorflow::DT_INT32);
  });
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  signature.mutable_outputs()->at("score").set_name("shaped:0");
  return files;
}

TEST(SignatureSplit, TheRowsOfStringsAreCountedOnTheDevice) {
  SavedModelFiles files = CountedModel();
  const auto split = Split(files);
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_EQ(split.value().device.inputs.size(), 1);
  const auto compiler = HloCompiler::Make(*split.value().device_graph, split.value().device);
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  const auto program = compiler.value()->Translate(4);
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program.value().output_dims, (std::vector<std::vector<int64_t>>{{4, 3}}));
}

TEST(SignatureSplit, AnAssertionIsPartOfTheHostPart) {
  SavedModelFiles files = TwoOutputs();
  files.AddConst("holds", tensorflow::Tensor(true));
  files.AddNode("assert", "Assert", {"holds", "text"}, [](NodeDef* node) {
    (*node->mutable_attr())["T"].mutable_list()->add_type(tensorflow::DT_STRING);
  });
  auto& graph = *files.meta_graph().mutable_graph_def();
  for (NodeDef& node : *graph.mutable_node()) {
    if (node.name() == "score") node.add_input("^assert");
  }
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  signature.mutable_outputs()->erase("bucket");
  const auto split = Split(files);
  ASSERT_TRUE(split.ok()) << split.status().message();
  ASSERT_TRUE(split.value().has_host_part());
  EXPECT_EQ(split.value().host.outputs[0].name, "checked");
  EXPECT_EQ(split.value().host_ops, (std::set<std::string>{"Assert"}));
  const std::vector<std::string> names = NodesOf(*split.value().host_graph);
  EXPECT_NE(std::find(names.begin(), names.end(), "host/assert"), names.end());
  for (const NodeDef& node : split.value().device_graph->graph_def().node()) {
    EXPECT_NE(node.op(), "Assert");
    for (const std::string& input : node.input())
      EXPECT_EQ(input.find("assert"), std::string::npos);
  }
}

void SetBool(NodeDef* node) { (*node->mutable_attr())["T"].set_type(tensorflow::DT_BOOL); }

// score = [x] * v, after a conditional of TensorFlow 1 with a branch that asserts, as
// tf.compat.v1.Assert makes it.
SavedModelFiles GuardedModel() {
  SavedModelFiles files = TwoOutputs();
  files.AddConst("holds", tensorflow::Tensor(true));
  files.AddNode("switch", "Switch", {"holds", "holds"}, SetBool);
  files.AddNode("said", "Switch", {"text", "holds"}, [](NodeDef* node) {
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_STRING);
  });
  files.AddNode("assert", "Assert", {"switch", "said"}, [](NodeDef* node) {
    (*node->mutable_attr())["T"].mutable_list()->add_type(tensorflow::DT_STRING);
  });
  files.AddNode("failed", "Identity", {"switch", "^assert"}, SetBool);
  files.AddNode("held", "Identity", {"switch:1"}, SetBool);
  files.AddNode("guard", "Merge", {"failed", "held"}, [](NodeDef* node) {
    SetBool(node);
    (*node->mutable_attr())["N"].set_i(2);
  });
  auto& graph = *files.meta_graph().mutable_graph_def();
  for (NodeDef& node : *graph.mutable_node()) {
    if (node.name() == "score") node.add_input("^guard");
  }
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  signature.mutable_outputs()->erase("bucket");
  return files;
}

TEST(SignatureSplit, AnAssertionOfABranchStaysOnTheCpu) {
  SavedModelFiles files = GuardedModel();
  const auto split = Split(files);
  EXPECT_EQ(split.status().code(), base::Code::kUnimplemented);
  EXPECT_EQ(split.status().message(),
            "node 'assert' (Assert) may fail requests, and is part of a conditional of "
            "TensorFlow 1");
}

TEST(SignatureSplit, AnAssertionAfterAConditionalIsChecked) {
  SavedModelFiles files = GuardedModel();
  auto& graph = *files.meta_graph().mutable_graph_def();
  for (NodeDef& node : *graph.mutable_node()) {
    if (node.name() == "failed") node.mutable_input()->RemoveLast();
    if (node.name() == "score") node.set_input(2, "^assert");
    if (node.name() != "assert") continue;
    node.set_input(0, "guard");
    node.set_input(1, "text");
  }
  const auto split = Split(files);
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_EQ(split.value().host.outputs[0].name, "checked");
}

// y = row `id` of a table of 5 rows. With `is_bounded` it is the row of the id modulo 5.
SavedModelFiles LookUpModel(bool is_bounded) {
  SavedModelFiles files;
  files.AddPlaceholder("id", tensorflow::DT_INT64, {-1, 2});
  tensorflow::Tensor table(tensorflow::DT_FLOAT, {5, 3});
  table.flat<float>().setConstant(1);
  files.AddVariable("table", table);
  files.AddConst("five", tensorflow::Tensor(int64_t{5}));
  files.AddConst("axis", tensorflow::Tensor(0));
  files.AddNode("remainder", "FloorMod", {"id", "five"},
                [](NodeDef* node) { (*node->mutable_attr())["T"].set_type(tensorflow::DT_INT64); });
  const char* const ids = is_bounded ? "remainder" : "id";
  files.AddNode("y", "GatherV2", {"table/read", ids, "axis"}, [](NodeDef* node) {
    (*node->mutable_attr())["Tparams"].set_type(tensorflow::DT_FLOAT);
    (*node->mutable_attr())["Tindices"].set_type(tensorflow::DT_INT64);
    (*node->mutable_attr())["Taxis"].set_type(tensorflow::DT_INT32);
  });
  files.AddSignature("serving_default", {{"id", "id:0", tensorflow::DT_INT64}},
                     {{"y", "y:0", tensorflow::DT_FLOAT}});
  DeclareInput("id", {-1, 2}, &files);
  return files;
}

TEST(SignatureSplit, IdsThatNothingBoundsAreChecked) {
  SavedModelFiles files = LookUpModel(/*is_bounded=*/false);
  const auto split = Split(files);
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_TRUE(split.value().has_index_check);
  const auto compiler = HloCompiler::Make(*split.value().device_graph, split.value().device);
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  const auto program = compiler.value()->Translate(4);
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program.value().output_dims, (std::vector<std::vector<int64_t>>{{4, 2, 3}, {4}}));
}

TEST(SignatureSplit, ShortIdsAreCheckedWithTheSizesOfTheTable) {
  SavedModelFiles files = LookUpModel(/*is_bounded=*/false);
  for (NodeDef& node : *files.meta_graph().mutable_graph_def()->mutable_node()) {
    if (node.name() == "id") (*node.mutable_attr())["dtype"].set_type(tensorflow::DT_INT16);
    if (node.name() == "y") (*node.mutable_attr())["Tindices"].set_type(tensorflow::DT_INT16);
  }
  auto& graph = *files.meta_graph().mutable_graph_def();
  for (int i = graph.node_size() - 1; i >= 0; --i) {
    if (graph.node(i).name() == "remainder") graph.mutable_node()->DeleteSubrange(i, 1);
  }
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  signature.mutable_inputs()->at("id").set_dtype(tensorflow::DT_INT16);
  const auto split = Split(files);
  ASSERT_TRUE(split.ok()) << split.status().message();
  ASSERT_TRUE(split.value().has_index_check);
  int size_count = 0;
  for (const NodeDef& node : split.value().device_graph->graph_def().node()) {
    if (node.name().find("/sizes") == std::string::npos) continue;
    tensorflow::Tensor sizes;
    ASSERT_TRUE(sizes.FromProto(node.attr().at("value").tensor()));
    EXPECT_EQ(sizes.scalar<int16_t>()(), 5);
    ++size_count;
  }
  EXPECT_EQ(size_count, 1);
}

TEST(SignatureSplit, IdsThatARemainderBoundsAreNotChecked) {
  SavedModelFiles files = LookUpModel(/*is_bounded=*/true);
  const auto split = Split(files);
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_FALSE(split.value().has_index_check);
  ASSERT_EQ(split.value().variables.size(), 1);
  const auto& [key, variable] = *split.value().variables.begin();
  EXPECT_EQ(key.name, "table");
  EXPECT_EQ(variable.bytes, 5 * 3 * 4);
  EXPECT_TRUE(variable.is_table);
}

TEST(SignatureSplit, ATableMayStayOnTheHost) {
  SavedModelFiles files = LookUpModel(/*is_bounded=*/false);
  files.AddNode("half", "AddV2", {"y", "y"}, SetFloat);
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  signature.mutable_outputs()->at("y").set_name("half:0");
  const auto split = Split(files, {{}, {ResourceKey{"", "table"}}});
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_EQ(split.value().host_ops, (std::set<std::string>{"GatherV2"}));
  EXPECT_TRUE(split.value().variables.empty());
  EXPECT_FALSE(split.value().has_index_check);
  ASSERT_EQ(split.value().device.inputs.size(), 1);
  EXPECT_EQ(split.value().device.inputs[0].dims, (std::vector<int64_t>{-1, 2, 3}));
}

TEST(SignatureSplit, ADivisorThatMayBeZeroStaysOnTheHost) {
  SavedModelFiles files = LookUpModel(/*is_bounded=*/true);
  auto& graph = *files.meta_graph().mutable_graph_def();
  for (NodeDef& node : *graph.mutable_node()) {
    if (node.name() == "remainder") node.set_input(1, "id");
  }
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  signature.mutable_outputs()->at("y").set_name("remainder:0");
  signature.mutable_outputs()->at("y").set_dtype(tensorflow::DT_INT64);
  const auto split = Split(files);
  EXPECT_NE(split.status().message().find("node 'remainder' (FloorMod), which may fail requests"),
            std::string::npos)
      << split.status().message();
}

// The output of TwoOutputs, computed in a function that a function calls.
TEST(SignatureSplit, CallsAreLookedInto) {
  SavedModelFiles files = TwoOutputs();
  auto& graph = *files.meta_graph().mutable_graph_def();
  tensorflow::FunctionDef& inner = *graph.mutable_library()->add_function();
  inner.mutable_signature()->set_name("inner");
  for (const auto& [name, type] :
       {std::pair("a", tensorflow::DT_FLOAT), std::pair("t", tensorflow::DT_STRING)}) {
    auto* const argument = inner.mutable_signature()->add_input_arg();
    argument->set_name(name);
    argument->set_type(type);
  }
  for (const auto& [name, type] :
       {std::pair("twice", tensorflow::DT_FLOAT), std::pair("lower", tensorflow::DT_STRING)}) {
    auto* const result = inner.mutable_signature()->add_output_arg();
    result->set_name(name);
    result->set_type(type);
  }
  NodeDef* const sum = inner.add_node_def();
  sum->set_name("sum");
  sum->set_op("AddV2");
  sum->add_input("a");
  sum->add_input("a");
  SetFloat(sum);
  NodeDef* const lower = inner.add_node_def();
  lower->set_name("lowered");
  lower->set_op("StringLower");
  lower->add_input("t");
  (*inner.mutable_ret())["twice"] = "sum:z:0";
  (*inner.mutable_ret())["lower"] = "lowered:output:0";
  files.AddNode("call", "PartitionedCall", {"score", "text"}, [](NodeDef* node) {
    for (const auto type : {tensorflow::DT_FLOAT, tensorflow::DT_STRING}) {
      (*node->mutable_attr())["Tin"].mutable_list()->add_type(type);
      (*node->mutable_attr())["Tout"].mutable_list()->add_type(type);
    }
    (*node->mutable_attr())["f"].mutable_func()->set_name("inner");
  });
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  signature.mutable_outputs()->at("score").set_name("call:0");
  signature.mutable_outputs()->at("bucket").set_name("call:1");
  signature.mutable_outputs()->at("bucket").set_dtype(tensorflow::DT_STRING);
  const auto split = Split(files);
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_FALSE(split.value().outputs[0].is_first);
  EXPECT_TRUE(split.value().outputs[1].is_first);
  EXPECT_EQ(split.value().host_ops, (std::set<std::string>{"StringLower"}));
}

}  // namespace
}  // namespace millpond::tf
