#include "native/tf/table_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "native/tf/shard_reader.h"
#include "native/tf/variable_writes.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

using base::StatusOr;

bool IsLarge(const CheckpointEntry& entry) {
  return entry.slices.empty() && !entry.is_slice() &&
         tensorflow::DataTypeCanUseMemcpy(entry.dtype) && entry.shape.dims() > 0 &&
         entry.size_bytes >= static_cast<int64_t>(kTableBytesMin);
}

bool IsLocal(const std::string& prefix) { return prefix.find("://") == std::string::npos; }

// Makes the plan of one model.
class TablePlanner {
 public:
  TablePlanner(const tensorflow::MetaGraphDef& meta_graph, const std::string& init_op,
               bool requests_may_write, ShardReader* shards)
      : targets_(FindRestoreTargets(meta_graph, meta_graph.saver_def().restore_op_name())),
        writes_(AnalyzeInitWrites(meta_graph, init_op)),
        requests_may_write_(requests_may_write),
        shards_(shards) {}

  void Add(const CheckpointEntry& entry) {
    RestoredTensor tensor(entry.name, "");
    const auto target = targets_.find(tensor);
    if (target == targets_.end()) return;
    const std::string& variable = target->second;
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
    plan_.tables.push_back({std::move(tensor), variable, std::move(contents), bytes,
                            bytes / static_cast<size_t>(entry.shape.dim_size(0)), is_written});
  }

  TablePlan TakePlan() { return std::move(plan_); }

 private:
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

  const std::map<RestoredTensor, std::string> targets_;
  const InitWrites writes_;
  const bool requests_may_write_;
  ShardReader* const shards_;
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
  for (const CheckpointEntry& entry : entries) {
    if (IsLarge(entry)) planner.Add(entry);
  }
  return planner.TakePlan();
}

}  // namespace millpond::tf
