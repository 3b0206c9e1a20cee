#include "native/tf/saved_model_check.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <vector>

#include "native/base/regular_files.h"
#include "native/tf/checkpoint_index.h"
#include "native/tf/status.h"
#include "tensorflow/cc/saved_model/constants.h"
#include "tensorflow/cc/saved_model/loader_util.h"
#include "tensorflow/cc/saved_model/reader.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/path.h"
#include "tensorflow/core/protobuf/saved_model.pb.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using tensorflow::Env;
using tensorflow::io::JoinPath;

// The files that TensorFlow reads whole, with the most that it may read. The graph's limit is the
// longest message that protobuf parses. A fingerprint is five numbers.
struct SizedFile {
  const char* name;
  uint64_t bytes_max;
};
constexpr SizedFile kSizedFiles[] = {
    {tensorflow::kSavedModelFilenamePb, INT32_MAX},
    {tensorflow::kSavedModelFilenamePbTxt, INT32_MAX},
    {"fingerprint.pb", 1U << 20U},
};

Status CheckSize(const std::string& directory, const SizedFile& file) {
  const std::string path = JoinPath(directory, file.name);
  uint64_t bytes = 0;
  if (!Env::Default()->GetFileSize(path, &bytes).ok() || bytes <= file.bytes_max) return {};
  return base::DataLoss(path + " has " + std::to_string(bytes) + " bytes, and at most " +
                        std::to_string(file.bytes_max) + " are read of it; export the model again");
}

bool IsVariableOp(const std::string& op) {
  static const auto* const kOps =
      new std::unordered_set<std::string>{"VarHandleOp", "VariableV2", "Variable"};
  return kOps->count(op) > 0;
}

template <typename Nodes>
bool AnyVariable(const Nodes& nodes) {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const auto& node) { return IsVariableOp(node.op()); });
}

bool HasVariables(const tensorflow::SavedModel& saved_model) {
  for (const auto& meta_graph : saved_model.meta_graphs()) {
    if (AnyVariable(meta_graph.graph_def().node())) return true;
    for (const auto& function : meta_graph.graph_def().library().function()) {
      if (AnyVariable(function.node_def())) return true;
    }
  }
  return false;
}

// Returns the assets that a graph names and that are missing, each once, as paths below
// `directory`.
StatusOr<std::vector<std::string>> FindMissingAssets(const std::string& directory,
                                                     const tensorflow::SavedModel& saved_model) {
  std::set<std::string> missing;
  for (const auto& meta_graph : saved_model.meta_graphs()) {
    std::vector<tensorflow::AssetFileDef> assets;
    const absl::Status read = tensorflow::internal::GetAssetFileDefs(meta_graph, &assets);
    if (!read.ok()) return base::DataLoss(directory + ": " + std::string(read.message()));
    for (const auto& asset : assets) {
      const std::string path = JoinPath(tensorflow::kSavedModelAssetsDirectory, asset.filename());
      if (!Env::Default()->FileExists(JoinPath(directory, path)).ok()) missing.insert(path);
    }
  }
  return std::vector<std::string>(missing.begin(), missing.end());
}

Status CheckVariables(const std::string& directory) {
  const std::string prefix = JoinPath(directory, tensorflow::kSavedModelVariablesDirectory,
                                      tensorflow::kSavedModelVariablesFilename);
  const std::string index = tensorflow::MetaFilename(prefix);
  if (!Env::Default()->FileExists(index).ok()) {
    return base::FailedPrecondition(index + " is missing, and the graph has variables");
  }
  const base::StatusOr<CheckpointIndex> checkpoint = ReadCheckpointIndex(prefix);
  if (!checkpoint.ok()) return checkpoint.status();
  const std::vector<int64_t> shard_bytes = ShardBytesMin(checkpoint.value());
  const auto shard_count = static_cast<int32_t>(shard_bytes.size());
  for (int32_t shard = 0; shard < shard_count; ++shard) {
    const std::string path = tensorflow::DataFilename(prefix, shard, shard_count);
    uint64_t got_bytes = 0;
    if (!Env::Default()->GetFileSize(path, &got_bytes).ok()) {
      return base::FailedPrecondition(path + " is missing, which " + index + " names");
    }
    const auto want_bytes = static_cast<uint64_t>(shard_bytes[shard]);
    if (got_bytes < want_bytes) {
      return base::FailedPrecondition(path + " has " + std::to_string(got_bytes) +
                                      " bytes, and variables.index names " +
                                      std::to_string(want_bytes));
    }
  }
  return {};
}

}  // namespace

StatusOr<std::vector<std::string>> CheckSavedModel(const std::string& directory) {
  // Checked first, because opening a pipe waits for its writer, so TensorFlow's readers would never
  // return.
  MILLPOND_RETURN_IF_ERROR(base::CheckRegularFiles(directory));
  for (const SizedFile& file : kSizedFiles) MILLPOND_RETURN_IF_ERROR(CheckSize(directory, file));
  tensorflow::SavedModel saved_model;
  const absl::Status read = tensorflow::ReadSavedModel(directory, &saved_model);
  if (absl::IsNotFound(read)) {
    return base::FailedPrecondition(directory +
                                    " has neither saved_model.pb nor saved_model.pbtxt");
  }
  if (!read.ok() && !IsOfContents(read)) {
    return FromTensorFlow(read, "reading the graph of " + directory);
  }
  if (!read.ok()) {
    return base::DataLoss(
        directory + ": saved_model.pb (or .pbtxt) does not parse: " + std::string(read.message()));
  }
  if (saved_model.meta_graphs().empty()) {
    return base::DataLoss(directory + ": saved_model.pb holds no graph (is it cut short?)");
  }
  if (HasVariables(saved_model)) MILLPOND_RETURN_IF_ERROR(CheckVariables(directory));
  return FindMissingAssets(directory, saved_model);
}

}  // namespace millpond::tf
