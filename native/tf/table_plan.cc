#include "native/tf/table_plan.h"

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

// Returns the reason why a variable must be read whole; "" if there is none.
std::string ReasonAgainst(const std::string& variable, const InitWrites& writes,
                          bool requests_may_write) {
  if (requests_may_write) return "requests may write to variables of the model";
  if (!writes.are_known) return "the graph does not show what the init op writes to";
  if (writes.otherwise.count(variable) == 0) return "";
  return "the init op writes to the variable by another op than ResourceScatterUpdate";
}

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
  if (index.value().header.is_big_endian) return TablePlan();
  std::vector<const CheckpointEntry*> large;
  for (const CheckpointEntry& entry : index.value().entries) {
    if (IsLarge(entry)) large.push_back(&entry);
  }
  TablePlan plan;
  if (large.empty()) return plan;
  const auto targets = FindRestoreTargets(meta_graph, meta_graph.saver_def().restore_op_name());
  const InitWrites writes = AnalyzeInitWrites(meta_graph, init_op);
  ShardReader shards(prefix, index.value().header.shard_count);
  for (const CheckpointEntry* const entry : large) {
    RestoredTensor tensor(entry->name, "");
    const auto target = targets.find(tensor);
    if (target == targets.end()) continue;
    const std::string& variable = target->second;
    const bool is_written = writes.scattered.count(variable) > 0;
    const auto file = shards.FileOf(entry->shard);
    if (!is_written && (!file.ok() || file.value().link_count < 2)) continue;
    const auto bytes = static_cast<size_t>(entry->size_bytes);
    std::string reason = ReasonAgainst(variable, writes, requests_may_write);
    if (!reason.empty()) {
      plan.unkept.push_back({variable, bytes, std::move(reason)});
      continue;
    }
    std::string contents = ContentsOf(*entry, &shards);
    // The restore returns the error of a file that cannot be read.
    if (contents.empty()) continue;
    plan.tables.push_back({std::move(tensor), variable, std::move(contents), bytes,
                           bytes / static_cast<size_t>(entry->shape.dim_size(0)), is_written});
  }
  return plan;
}

}  // namespace millpond::tf
