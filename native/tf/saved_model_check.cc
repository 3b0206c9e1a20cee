#include "native/tf/saved_model_check.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <vector>

#include "absl/strings/string_view.h"
#include "tensorflow/cc/saved_model/constants.h"
#include "tensorflow/cc/saved_model/loader_util.h"
#include "tensorflow/cc/saved_model/reader.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/path.h"
#include "tensorflow/core/protobuf/saved_model.pb.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace millpond::tf {
namespace {

using base::Status;
using tensorflow::Env;
using tensorflow::io::JoinPath;

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

Status CheckAssets(const std::string& directory, const tensorflow::SavedModel& saved_model) {
  for (const auto& meta_graph : saved_model.meta_graphs()) {
    std::vector<tensorflow::AssetFileDef> assets;
    const absl::Status read = tensorflow::internal::GetAssetFileDefs(meta_graph, &assets);
    if (!read.ok()) return base::DataLoss(directory + ": " + std::string(read.message()));
    for (const auto& asset : assets) {
      const std::string path =
          JoinPath(directory, tensorflow::kSavedModelAssetsDirectory, asset.filename());
      if (!Env::Default()->FileExists(path).ok()) {
        return base::FailedPrecondition(path + " is missing, which the graph names as an asset");
      }
    }
  }
  return {};
}

// The least size of each shard in bytes: where its last tensor ends.
base::StatusOr<std::vector<uint64_t>> ShardSizes(const std::string& prefix) {
  const std::string index = tensorflow::MetaFilename(prefix);
  tensorflow::BundleReader reader(Env::Default(), prefix);
  if (!reader.status().ok()) {
    return base::DataLoss(index + " does not parse: " + std::string(reader.status().message()));
  }
  reader.Seek(tensorflow::kHeaderEntryKey);
  tensorflow::BundleHeaderProto header;
  if (!reader.Valid() || !header.ParseFromArray(reader.value().data(), reader.value().size())) {
    return base::DataLoss(index + " has no header");
  }
  std::vector<uint64_t> sizes(std::max(1, header.num_shards()), 0);
  for (reader.Next(); reader.Valid(); reader.Next()) {
    tensorflow::BundleEntryProto entry;
    const absl::string_view value = reader.value();
    if (!entry.ParseFromArray(value.data(), value.size()) || entry.shard_id() < 0 ||
        entry.shard_id() >= static_cast<int>(sizes.size())) {
      return base::DataLoss(index + " has a bad entry '" + std::string(reader.key()) + "'");
    }
    uint64_t& size = sizes[entry.shard_id()];
    size = std::max(size, static_cast<uint64_t>(entry.offset() + entry.size()));
  }
  return sizes;
}

Status CheckVariables(const std::string& directory) {
  const std::string prefix = JoinPath(directory, tensorflow::kSavedModelVariablesDirectory,
                                      tensorflow::kSavedModelVariablesFilename);
  const std::string index = tensorflow::MetaFilename(prefix);
  if (!Env::Default()->FileExists(index).ok()) {
    return base::FailedPrecondition(index + " is missing, and the graph has variables");
  }
  const base::StatusOr<std::vector<uint64_t>> sizes = ShardSizes(prefix);
  if (!sizes.ok()) return sizes.status();
  const auto shard_count = static_cast<int32_t>(sizes.value().size());
  for (int32_t shard = 0; shard < shard_count; ++shard) {
    const std::string path = tensorflow::DataFilename(prefix, shard, shard_count);
    uint64_t got_bytes = 0;
    if (!Env::Default()->GetFileSize(path, &got_bytes).ok()) {
      return base::FailedPrecondition(path + " is missing, which " + index + " names");
    }
    const uint64_t want_bytes = sizes.value()[shard];
    if (got_bytes < want_bytes) {
      return base::FailedPrecondition(path + " has " + std::to_string(got_bytes) +
                                      " bytes, and variables.index names " +
                                      std::to_string(want_bytes));
    }
  }
  return {};
}

}  // namespace

Status CheckSavedModel(const std::string& directory) {
  tensorflow::SavedModel saved_model;
  const absl::Status read = tensorflow::ReadSavedModel(directory, &saved_model);
  if (absl::IsNotFound(read)) {
    return base::FailedPrecondition(directory +
                                    " has neither saved_model.pb nor saved_model.pbtxt");
  }
  if (!read.ok()) {
    return base::DataLoss(
        directory + ": saved_model.pb (or .pbtxt) does not parse: " + std::string(read.message()));
  }
  if (saved_model.meta_graphs().empty()) {
    return base::DataLoss(directory + ": saved_model.pb holds no graph (is it cut short?)");
  }
  MILLPOND_RETURN_IF_ERROR(CheckAssets(directory, saved_model));
  return HasVariables(saved_model) ? CheckVariables(directory) : Status();
}

}  // namespace millpond::tf
