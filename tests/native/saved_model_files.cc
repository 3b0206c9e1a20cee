#include "tests/native/saved_model_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/public/version.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tests/native/tensors.h"

namespace millpond::testing {
namespace {

using tensorflow::DT_FLOAT;
using tensorflow::DT_INT64;
using tensorflow::DT_STRING;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using tensorflow::tstring;

SavedModelFiles::SetAttributes Types(
    const std::vector<std::pair<std::string, tensorflow::DataType>>& types) {
  return [types](NodeDef* node) {
    for (const auto& [name, type] : types) (*node->mutable_attr())[name].set_type(type);
  };
}

tensorflow::TensorInfo MakeTensorInfo(const SavedModelFiles::Named& named) {
  tensorflow::TensorInfo info;
  info.set_name(named.tensor_name);
  info.set_dtype(named.dtype);
  info.mutable_tensor_shape()->set_unknown_rank(true);
  return info;
}

}  // namespace

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  EXPECT_TRUE(file.good()) << path;
}

void CutFile(const std::string& path, size_t bytes) { std::filesystem::resize_file(path, bytes); }

SavedModelFiles::SavedModelFiles() {
  proto_.set_saved_model_schema_version(1);
  proto_.add_meta_graphs()->mutable_meta_info_def()->add_tags("serve");
  meta_graph().mutable_graph_def()->mutable_versions()->set_producer(TF_GRAPH_DEF_VERSION);
}

void SavedModelFiles::AddNode(const std::string& name, const std::string& op,
                              const std::vector<std::string>& inputs,
                              const SetAttributes& set_attributes) {
  NodeDef* const node = meta_graph().mutable_graph_def()->add_node();
  node->set_name(name);
  node->set_op(op);
  for (const std::string& input : inputs) node->add_input(input);
  if (set_attributes) set_attributes(node);
}

void SavedModelFiles::AddPlaceholder(const std::string& name, tensorflow::DataType dtype,
                                     const std::vector<int64_t>& dims) {
  AddNode(name, "Placeholder", {}, [&](NodeDef* node) {
    (*node->mutable_attr())["dtype"].set_type(dtype);
    auto* const shape = (*node->mutable_attr())["shape"].mutable_shape();
    for (const int64_t size : dims) shape->add_dim()->set_size(size);
  });
}

void SavedModelFiles::AddConst(const std::string& name, const Tensor& value,
                               const std::vector<std::string>& inputs) {
  AddNode(name, "Const", inputs, [&](NodeDef* node) {
    (*node->mutable_attr())["dtype"].set_type(value.dtype());
    value.AsProtoField((*node->mutable_attr())["value"].mutable_tensor());
  });
}

void SavedModelFiles::AddSignature(const std::string& name, const std::vector<Named>& inputs,
                                   const std::vector<Named>& outputs) {
  auto& signature = (*meta_graph().mutable_signature_def())[name];
  signature.set_method_name("tensorflow/serving/predict");
  for (const Named& input : inputs)
    (*signature.mutable_inputs())[input.name] = MakeTensorInfo(input);
  for (const Named& output : outputs) {
    (*signature.mutable_outputs())[output.name] = MakeTensorInfo(output);
  }
}

void SavedModelFiles::AddVariable(const std::string& name, const Tensor& value, bool has_shape) {
  const tensorflow::DataType dtype = value.dtype();
  AddNode(name, "VarHandleOp", {}, [&](NodeDef* node) {
    (*node->mutable_attr())["dtype"].set_type(dtype);
    (*node->mutable_attr())["shared_name"].set_s(name);
    auto* const shape = (*node->mutable_attr())["shape"].mutable_shape();
    if (has_shape) {
      value.shape().AsProto(shape);
    } else {
      shape->set_unknown_rank(true);
    }
  });
  AddNode(name + "/read", "ReadVariableOp", {name}, Types({{"dtype", dtype}}));
  if (variables_.empty()) {
    AddConst("save/filename", Scalar<tstring>("model"));
    AddConst("save/slices", Vector<tstring>({""}));
  }
  // The saver restores one variable after the other.
  const std::string own = "save/" + name;
  const std::string before = variables_.empty() ? "" : "^save/" + variables_.back().name + "/all";
  AddConst(own + "/names", Vector<tstring>({name}));
  AddNode(
      own + "/restore", "RestoreV2", {"save/filename", own + "/names", "save/slices"},
      [&](NodeDef* node) { (*node->mutable_attr())["dtypes"].mutable_list()->add_type(dtype); });
  AddNode(own + "/assign", "AssignVariableOp", {name, own + "/restore"}, Types({{"dtype", dtype}}));
  std::vector<std::string> all = {"^" + own + "/assign"};
  if (!before.empty()) all.push_back(before);
  AddNode(own + "/all", "NoOp", all);
  meta_graph().mutable_saver_def()->set_filename_tensor_name("save/filename:0");
  meta_graph().mutable_saver_def()->set_restore_op_name(own + "/all");
  meta_graph().mutable_saver_def()->set_version(tensorflow::SaverDef::V2);
  variables_.push_back({name, value});
}

void SavedModelFiles::SetInitOp(const std::string& node) {
  constexpr char kKey[] = "__saved_model_init_op";
  auto& output = (*(*meta_graph().mutable_signature_def())[kKey].mutable_outputs())[kKey];
  output.set_name(node);
  output.mutable_tensor_shape()->set_unknown_rank(true);
}

void SavedModelFiles::AddAsset(const std::string& node, const std::string& filename,
                               const std::string& bytes) {
  auto* const asset = meta_graph().add_asset_file_def();
  asset->mutable_tensor_info()->set_name(node + ":0");
  asset->set_filename(filename);
  assets_.push_back({filename, bytes});
}

void SavedModelFiles::WriteGraph(const std::string& directory) const {
  WriteFile(directory + "/saved_model.pb", proto_.SerializeAsString());
  for (const Asset& asset : assets_)
    WriteFile(directory + "/assets/" + asset.filename, asset.bytes);
}

void SavedModelFiles::Write(const std::string& directory) const {
  WriteGraph(directory);
  if (!variables_.empty()) WriteVariables(directory);
}

void SavedModelFiles::WriteVariables(const std::string& directory) const {
  std::filesystem::create_directories(directory + "/variables");
  tensorflow::BundleWriter writer(tensorflow::Env::Default(), directory + "/variables/variables");
  for (const Variable& variable : variables_) {
    ASSERT_TRUE(writer.Add(variable.name, variable.value).ok());
  }
  ASSERT_TRUE(writer.Finish().ok());
}

SavedModelFiles DoublingModel() {
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {-1});
  files.AddNode("sum", "AddV2", {"x", "x"}, Types({{"T", DT_FLOAT}}));
  files.AddSignature("serving_default", {{"x", "x:0", DT_FLOAT}}, {{"y", "sum:0", DT_FLOAT}});
  files.AddSignature(
      "names", {{"x", "x:0", DT_FLOAT}},
      {{"y", "sum:0", DT_FLOAT}, {"y_again", "sum:0", DT_FLOAT}, {"x_back", "x:0", DT_FLOAT}});
  return files;
}

SavedModelFiles VariableModel(const Tensor& value) {
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {-1});
  files.AddVariable("v", value);
  files.AddNode("product", "Mul", {"x", "v/read"}, Types({{"T", DT_FLOAT}}));
  files.AddSignature("serving_default", {{"x", "x:0", DT_FLOAT}}, {{"y", "product:0", DT_FLOAT}});
  return files;
}

SavedModelFiles TableModel() {
  const auto key_value = Types({{"key_dtype", DT_STRING}, {"value_dtype", DT_INT64}});
  SavedModelFiles files;
  files.AddPlaceholder("word", DT_STRING, {-1});
  files.AddConst("words_path", Scalar<tstring>("/where/it/was/exported/words.txt"));
  files.AddNode("table", "HashTableV2", {}, [&](NodeDef* node) {
    key_value(node);
    (*node->mutable_attr())["shared_name"].set_s("words");
  });
  files.AddNode("fill", "InitializeTableFromTextFileV2", {"table", "words_path"},
                [](NodeDef* node) {
                  (*node->mutable_attr())["key_index"].set_i(-2);    // the whole line
                  (*node->mutable_attr())["value_index"].set_i(-1);  // its number
                });
  files.AddNode("init", "NoOp", {"^fill"});
  files.AddConst("unknown", Scalar<int64_t>(-1));
  files.AddNode("find", "LookupTableFindV2", {"table", "word", "unknown"},
                Types({{"Tin", DT_STRING}, {"Tout", DT_INT64}}));
  files.SetInitOp("init");
  files.AddAsset("words_path", "words.txt", "mill\npond\nflat\n");
  files.AddSignature("serving_default", {{"word", "word:0", DT_STRING}},
                     {{"line", "find:0", DT_INT64}});
  return files;
}

SavedModelFiles CountingModel() {
  const auto of_float = Types({{"T", DT_FLOAT}});
  const auto enter = [&](bool is_constant) {
    return [of_float, is_constant](NodeDef* node) {
      of_float(node);
      (*node->mutable_attr())["frame_name"].set_s("count");
      (*node->mutable_attr())["is_constant"].set_b(is_constant);
    };
  };
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {});
  files.AddPlaceholder("limit", DT_FLOAT, {});
  files.AddConst("one", Scalar<float>(1));
  files.AddNode("enter_x", "Enter", {"x"}, enter(false));
  files.AddNode("enter_limit", "Enter", {"limit"}, enter(true));
  files.AddNode("enter_one", "Enter", {"one"}, enter(true));
  files.AddNode("merge", "Merge", {"enter_x", "next"}, [&](NodeDef* node) {
    of_float(node);
    (*node->mutable_attr())["N"].set_i(2);
  });
  files.AddNode("less", "Less", {"merge", "enter_limit"}, of_float);
  files.AddNode("goes_on", "LoopCond", {"less"});
  files.AddNode("switch", "Switch", {"merge", "goes_on"}, of_float);
  files.AddNode("add", "AddV2", {"switch:1", "enter_one"}, of_float);
  files.AddNode("next", "NextIteration", {"add"}, of_float);
  files.AddNode("exit", "Exit", {"switch"}, of_float);
  files.AddSignature("serving_default", {{"x", "x:0", DT_FLOAT}, {"limit", "limit:0", DT_FLOAT}},
                     {{"y", "exit:0", DT_FLOAT}});
  return files;
}

}  // namespace millpond::testing
