#include "tests/native/delta_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tests/native/tensors.h"

namespace millpond::testing {
namespace {

using tensorflow::DT_FLOAT;
using tensorflow::DT_INT32;
using tensorflow::DT_INT64;
using tensorflow::NodeDef;
using tensorflow::Tensor;

std::string TableName(int table) { return "t" + std::to_string(table); }
std::string IdsName(int table) { return "ids" + std::to_string(table); }
std::string RowsName(int table) { return "rows" + std::to_string(table); }

Tensor TableOf(int seed) {
  Tensor table(DT_FLOAT, {DeltaFiles::kRowCount, DeltaFiles::kWidth});
  auto values = table.flat<float>();
  for (int64_t i = 0; i < values.size(); ++i) values(i) = static_cast<float>(i * 7 % 1009 + seed);
  return table;
}

Tensor RowsOf(const ChangedRows& changes) {
  Tensor rows(DT_FLOAT, {static_cast<int64_t>(changes.ids.size()), DeltaFiles::kWidth});
  auto values = rows.flat<float>();
  for (int64_t i = 0; i < values.size(); ++i) {
    values(i) = changes.value + static_cast<float>(i / DeltaFiles::kWidth);
  }
  return rows;
}

Tensor IdsOf(const ChangedRows& changes) {
  Tensor ids(DT_INT64, {static_cast<int64_t>(changes.ids.size())});
  std::copy(changes.ids.begin(), changes.ids.end(), ids.flat<int64_t>().data());
  return ids;
}

void SetTypes(NodeDef* node, const std::map<std::string, tensorflow::DataType>& types) {
  for (const auto& [name, type] : types) (*node->mutable_attr())[name].set_type(type);
}

void WritePart(const std::string& prefix, const std::map<std::string, Tensor>& tensors) {
  std::filesystem::create_directories(std::filesystem::path(prefix).parent_path());
  tensorflow::BundleWriter writer(tensorflow::Env::Default(), prefix);
  for (const auto& [name, tensor] : tensors) ASSERT_TRUE(writer.Add(name, tensor).ok());
  ASSERT_TRUE(writer.Finish().ok());
}

}  // namespace

void DeltaFiles::NewBase(int seed) {
  ++base_count_;
  std::map<std::string, Tensor> tables;
  for (int k = 0; k < kTableCount; ++k) tables.emplace(TableName(k), TableOf(seed + k));
  WritePart(part(), tables);
}

void DeltaFiles::WriteVersion(const std::string& directory, const std::vector<ChangedRows>& changes,
                              float dense) const {
  std::filesystem::remove_all(directory);
  SavedModelFiles files = Graph();
  files.WriteGraph(directory);
  const std::string tables = directory + "/variables/a/part";
  const std::string rest = directory + "/variables/b/part";
  std::filesystem::create_directories(directory + "/variables/a");
  std::filesystem::create_hard_link(TablesPath(), tables + ".data-00000-of-00001");
  std::filesystem::copy_file(part() + ".index", tables + ".index");
  std::map<std::string, Tensor> others = {{"dense", Vector<float>({dense})}};
  for (int k = 0; k < kTableCount; ++k) {
    others.emplace(IdsName(k), IdsOf(changes[k]));
    others.emplace(RowsName(k), RowsOf(changes[k]));
  }
  WritePart(rest, others);
  const std::vector<tensorflow::tstring> parts = {tables, rest};
  ASSERT_TRUE(tensorflow::MergeBundles(tensorflow::Env::Default(), parts,
                                       directory + "/variables/variables")
                  .ok());
  std::filesystem::remove_all(directory + "/variables/a");
  std::filesystem::remove_all(directory + "/variables/b");
}

SavedModelFiles DeltaFiles::Graph() const {
  SavedModelFiles files;
  files.AddVariable("dense", Vector<float>({0}));
  files.AddPlaceholder("ids", DT_INT64, {-1});
  std::vector<std::string> applied;
  std::vector<std::string> summands;
  for (int k = 0; k < kTableCount; ++k) {
    const std::string name = TableName(k);
    files.AddVariable(name, Tensor(DT_FLOAT, {kRowCount, kWidth}));
    files.AddVariable(IdsName(k), Tensor(DT_INT64, {0}), /*has_shape=*/false);
    files.AddVariable(RowsName(k), Tensor(DT_FLOAT, {0, kWidth}), /*has_shape=*/false);
    if (writer_ != Writer::kNone) {
      files.AddNode(name + "/apply", "ResourceScatterUpdate",
                    {name, IdsName(k) + "/read", RowsName(k) + "/read"}, [](NodeDef* node) {
                      SetTypes(node, {{"dtype", DT_FLOAT}, {"Tindices", DT_INT64}});
                    });
      applied.push_back("^" + name + "/apply");
    }
    files.AddNode(name + "/gather", "ResourceGather", {name, "ids"}, [](NodeDef* node) {
      SetTypes(node, {{"dtype", DT_FLOAT}, {"Tindices", DT_INT64}});
    });
    files.AddNode(name + "/whole", "Identity", {name + "/read"}, SetFloat);
  }
  files.AddNode("tables_sum", "AddV2", {"t0/gather", "t1/gather"}, SetFloat);
  files.AddNode("y", "AddV2", {"tables_sum", "dense/read"}, SetFloat);
  if (writer_ == Writer::kAlsoAssigned) {
    files.AddNode("t0/doubled", "AddV2", {"t0/read", "t0/read"}, SetFloat);
    files.AddNode("t0/assign_again", "AssignVariableOp", {"t0", "t0/doubled", "^t0/apply"},
                  [](NodeDef* node) {
                    SetTypes(node, {{"dtype", DT_FLOAT}});
                  });
    applied.emplace_back("^t0/assign_again");
  }
  std::vector<SavedModelFiles::Named> whole = {{"t0", "t0/whole:0", DT_FLOAT},
                                               {"t1", "t1/whole:0", DT_FLOAT}};
  if (writer_ == Writer::kByRequests) {
    files.AddNode("t0/add", "AssignAddVariableOp", {"t0", "t0/read"}, [](NodeDef* node) {
      SetTypes(node, {{"dtype", DT_FLOAT}});
    });
    files.AddNode("t0/added", "Identity", {"t0/whole", "^t0/add"}, SetFloat);
    files.AddSignature("add", {}, {{"t0", "t0/added:0", DT_FLOAT}});
  }
  if (!applied.empty()) {
    files.AddNode("init", "NoOp", applied);
    files.SetInitOp("init");
  }
  files.AddSignature("serving_default", {{"ids", "ids:0", DT_INT64}}, {{"y", "y:0", DT_FLOAT}});
  files.AddSignature("tables", {}, whole);
  return files;
}

}  // namespace millpond::testing
