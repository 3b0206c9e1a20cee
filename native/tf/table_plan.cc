#include "native/tf/table_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "native/tf/handle_search.h"
#include "native/tf/shard_reader.h"
#include "native/tf/variable_writes.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/util/saved_tensor_slice_util.h"

namespace millpond::tf {
namespace {

using base::StatusOr;

// Returns true if the entry has the bytes of a tensor, or of a slice, that are worth keeping.
bool IsLarge(const CheckpointEntry& entry) {
  return entry.slices.empty() && tensorflow::DataTypeCanUseMemcpy(entry.dtype) &&
         entry.shape.dims() > 0 && entry.size_bytes >= static_cast<int64_t>(kTableBytesMin);
}

bool IsLocal(const std::string& prefix) { return prefix.find("://") == std::string::npos; }

// Returns the name of the entry that the restore reads for a tensor; "" if there is none.
std::string EntryNameOf(const RestoredTensor& tensor) {
  const auto& [name, shape_and_slice] = tensor;
  if (shape_and_slice.empty()) return name;
  tensorflow::TensorShape shape;
  tensorflow::TensorShape slice_shape;
  tensorflow::TensorSlice slice;
  const absl::Status parsed =
      tensorflow::checkpoint::ParseShapeAndSlice(shape_and_slice, &shape, &slice, &slice_shape);
  return parsed.ok() ? tensorflow::checkpoint::EncodeTensorNameSlice(name, slice) : "";
}

// Returns the bytes of a variable as its handle has them; 0 if it does not show them.
size_t VariableBytes(const tensorflow::NodeDef& handle) {
  const auto& attributes = handle.attr();
  const auto dtype = attributes.find("dtype");
  const auto shape = attributes.find("shape");
  tensorflow::TensorShape dims;
  if (dtype == attributes.end() || shape == attributes.end() ||
      !tensorflow::TensorShape::BuildTensorShape(shape->second.shape(), &dims).ok()) {
    return 0;
  }
  return static_cast<size_t>(dims.num_elements() * ElementBytes(dtype->second.type()));
}

// Makes the plan of one model.
class TablePlanner {
 public:
  TablePlanner(const tensorflow::MetaGraphDef& meta_graph, const std::string& init_op,
               bool requests_may_write, ShardReader* shards)
      : meta_graph_(meta_graph),
        targets_(FindRestoreTargets(meta_graph, meta_graph.saver_def().restore_op_name())),
        writes_(AnalyzeInitWrites(meta_graph, init_op)),
        requests_may_write_(requests_may_write),
        shards_(shards) {}

  void AddTables(const CheckpointIndex& index) {
    std::map<std::string_view, const CheckpointEntry*> entries;
    for (const CheckpointEntry& entry : index.entries) entries.emplace(entry.name, &entry);
    for (const auto& [tensor, variable] : targets_) {
      const auto found = entries.find(EntryNameOf(tensor));
      if (found == entries.end()) continue;
      has_entry_.insert(variable);
      if (IsLarge(*found->second)) Add(tensor, variable, *found->second);
    }
  }

  // Reports the scattered variables whose bytes are not found in the checkpoint.
  void AddWithoutEntry() {
    for (const tensorflow::NodeDef& node : meta_graph_.graph_def().node()) {
      if (node.op() != kHandleOp) continue;
      const std::string variable = HandleSearch::NameOf(HandleSearch::KeyOf(node));
      const size_t bytes = VariableBytes(node);
      if (bytes < kTableBytesMin || writes_.scattered.count(variable) == 0) continue;
      if (!has_entry_.insert(variable).second) continue;
      plan_.unkept.push_back({variable, bytes,
                              "the graph does not show which bytes of the checkpoint become the "
                              "variable, or they are in other pieces there"});
    }
  }

  TablePlan TakePlan() { return std::move(plan_); }

 private:
  void Add(const RestoredTensor& tensor, const std::string& variable,
           const CheckpointEntry& entry) {
    const bool is_written = writes_.scattered.count(variable) > 0;
    if (!is_written && !IsLinked(entry)) return;
    const auto bytes = static_cast<size_t>(entry.size_bytes);
    std::string reason = ReasonAgainst(variable);
    if (!reason.empty()) {
      plan_.unkept.push_back({variable, bytes, std::move(reason)});
      return;
    }
    std::string contents = ContentsOf(entry, shards_);
    // The restore returns the error of a file that cannot be read.
    if (contents.empty()) return;
    plan_.tables.push_back({tensor, entry.name, variable, std::move(contents), bytes,
                            bytes / static_cast<size_t>(entry.shape.dim_size(0)), is_written});
  }

  bool IsLinked(const CheckpointEntry& entry) const {
    const StatusOr<ShardFile> file = shards_->FileOf(entry.shard);
    return file.ok() && file.value().link_count > 1;
  }

  // Returns the reason why a variable must be read whole; "" if there is none.
  std::string ReasonAgainst(const std::string& variable) const {
    if (requests_may_write_) return "requests may write to variables of the model";
    if (!writes_.are_known) return "the graph does not show what the init op writes to";
    if (writes_.otherwise.count(variable) == 0) return "";
    return "the init op writes to the variable by another op than ResourceScatterUpdate";
  }

  const tensorflow::MetaGraphDef& meta_graph_;
  const std::map<RestoredTensor, std::string> targets_;
  const InitWrites writes_;
  const bool requests_may_write_;
  ShardReader* const shards_;
  std::set<std::string> has_entry_;  // the variables
  TablePlan plan_;
};

}  // namespace

std::string ContentsOf(const CheckpointEntry& entry, ShardReader* shards) {
  const StatusOr<ShardFile> file = shards->FileOf(entry.shard);
  if (!file.ok() || !shards->CheckHolds(entry).ok()) return "";
  return file.value().identity + ' ' + std::to_string(entry.offset_bytes) + ' ' +
         std::to_string(entry.size_bytes) + ' ' + std::to_string(entry.crc32c) + ' ' +
         tensorflow::DataTypeString(entry.dtype) + entry.shape.DebugString();
}

StatusOr<TablePlan> PlanTables(const tensorflow::MetaGraphDef& meta_graph,
                               const std::string& init_op, bool requests_may_write,
                               const std::string& prefix) {
  if (!IsLocal(prefix)) return TablePlan();
  const StatusOr<CheckpointIndex> index = ReadCheckpointIndex(prefix);
  if (!index.ok()) return index.status();
  const std::vector<CheckpointEntry>& entries = index.value().entries;
  // Most models have none, and their graphs need not be searched.
  if (index.value().header.is_big_endian || std::none_of(entries.begin(), entries.end(), IsLarge)) {
    return TablePlan();
  }
  ShardReader shards(prefix, index.value().header.shard_count);
  TablePlanner planner(meta_graph, init_op, requests_may_write, &shards);
  planner.AddTables(index.value());
  planner.AddWithoutEntry();
  return planner.TakePlan();
}

}  // namespace millpond::tf
