#include "native/tf/loaded_tables.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "native/tf/variable_writes.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"

namespace millpond::tf {
namespace {

using memory::ReadReason;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// The memory of a table as one version's tensor.
class TableBuffer final : public tensorflow::TensorBuffer {
 public:
  TableBuffer(void* data, size_t bytes, std::shared_ptr<const memory::TableHold> hold)
      : TensorBuffer(data), bytes_(bytes), hold_(std::move(hold)) {}

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
  }

 private:
  const size_t bytes_;
  const std::shared_ptr<const memory::TableHold> hold_;
};

const char* TextOf(ReadReason reason) {
  switch (reason) {
    case ReadReason::kNone:
      return "";
    case ReadReason::kFirst:
      return "no earlier version of the model has left a copy of the table";
    case ReadReason::kUnknown:
      return "a load has failed while it filled a copy of the table, or has replaced more than a "
             "quarter of the table's rows";
    case ReadReason::kOtherFile:
      return "all copies of the table are of another file";
  }
  return "";
}

// Gives a variable a copy of its value, in memory of its own.
absl::Status Detach(OpKernelContext* context, tensorflow::Var* variable) {
  const tensorflow::mutex_lock lock(*variable->mu());
  const Tensor value = *variable->tensor();
  Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(value.dtype(), value.shape(), &copy));
  std::memcpy(copy.data(), value.data(), value.TotalBytes());
  *variable->tensor() = std::move(copy);
  return absl::OkStatus();
}

void LogRows(const Tensor& ids, memory::TableClaim* claim) {
  const auto count = static_cast<size_t>(ids.NumElements());
  if (ids.dtype() == tensorflow::DT_INT64) {
    claim->LogRows(ids.flat<int64_t>().data(), count);
  } else if (ids.dtype() == tensorflow::DT_INT32) {
    claim->LogRows(ids.flat<int32_t>().data(), count);
  } else {
    claim->LoseContents();
  }
}

}  // namespace

LoadedTables::LoadedTables(TablePlan plan) {
  for (UnkeptTable& table : plan.unkept) {
    unkept_.push_back({std::move(table.variable), table.bytes, table.bytes, 0, table.reason});
  }
  for (PlannedTable& planned : plan.tables) {
    LoadedTable& table = tables_.emplace_back();
    // People know the variable by its path in the model, and not by the name of a node.
    table.report.variable =
        planned.tensor.first.substr(0, planned.tensor.first.find("/.ATTRIBUTES"));
    table.report.bytes = planned.bytes;
    table.plan = std::move(planned);
  }
}

size_t LoadedTables::LogBytesMax(size_t new_row_bytes) const {
  size_t log_bytes = 0;
  size_t row_bytes_min = SIZE_MAX;
  for (const LoadedTable& table : tables_) {
    if (!table.plan.is_written) continue;
    log_bytes += memory::LogBytesMax(table.plan.bytes, table.plan.row_bytes);
    row_bytes_min = std::min(row_bytes_min, table.plan.row_bytes);
  }
  const size_t row_count_max = new_row_bytes / row_bytes_min;
  return std::min(log_bytes, new_row_bytes + row_count_max * sizeof(int64_t));
}

bool LoadedTables::Has(const std::string& tensor_name) const {
  return std::any_of(tables_.begin(), tables_.end(), [&](const LoadedTable& table) {
    return table.plan.tensor.first == tensor_name;
  });
}

bool LoadedTables::HasEntry(const std::string& entry_name) const {
  return std::any_of(tables_.begin(), tables_.end(),
                     [&](const LoadedTable& table) { return table.plan.entry == entry_name; });
}

size_t LoadedTables::BytesToFill() const {
  size_t bytes = 0;
  for (const LoadedTable& table : tables_) {
    if (table.claim != nullptr) bytes += table.claim->bytes_to_fill();
  }
  return bytes;
}

memory::TableWish LoadedTables::WishFor(const LoadedTable& table, const std::string& owner) {
  return {owner, table.plan.contents, table.plan.bytes, table.plan.is_written};
}

std::vector<memory::TableWish> LoadedTables::Wishes(const std::string& owner) const {
  std::vector<memory::TableWish> wishes;
  for (const LoadedTable& table : tables_) wishes.push_back(WishFor(table, owner));
  return wishes;
}

size_t LoadedTables::ShareableBytes(const memory::TableStore& store,
                                    const std::string& owner) const {
  size_t bytes = 0;
  for (const LoadedTable& table : tables_) {
    if (store.WouldShare(WishFor(table, owner))) bytes += table.plan.bytes;
  }
  return bytes;
}

base::StatusOr<size_t> LoadedTables::Claim(memory::TableStore* store,
                                           const memory::TableStore::LoadPermit& permit,
                                           const std::string& owner) {
  size_t resident_bytes = 0;
  for (LoadedTable& table : tables_) {
    auto claim = store->Claim(WishFor(table, owner), table.plan.row_bytes, permit);
    if (!claim.ok()) return claim.status();
    table.claim = std::move(claim.value());
    table.hold = table.claim->hold();
    table.report.reason = TextOf(table.claim->reason());
    resident_bytes += table.claim->resident_bytes();
  }
  return resident_bytes;
}

LoadedTable* LoadedTables::Take(const RestoredTensor& tensor, const std::string& contents) {
  for (LoadedTable& table : tables_) {
    if (table.plan.tensor != tensor || table.claim == nullptr || table.is_taken) continue;
    table.is_taken = true;
    if (table.plan.contents == contents) return &table;
    table.report.reason = "the file with the table was replaced during the load";
    table.report.read_bytes = table.plan.bytes;
    return nullptr;
  }
  return nullptr;
}

Tensor LoadedTables::MakeTensor(const LoadedTable& table, tensorflow::DataType dtype,
                                const tensorflow::TensorShape& shape) {
  return Tensor(dtype, shape,
                tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>(
                    new TableBuffer(table.claim->data(), table.plan.bytes, table.claim->hold())));
}

LoadedTable* LoadedTables::TableOf(const Tensor& value) {
  if (!value.IsInitialized() ||
      dynamic_cast<const TableBuffer*>(tensorflow::DMAHelper::buffer(&value)) == nullptr) {
    return nullptr;
  }
  for (LoadedTable& table : tables_) {
    if (table.claim != nullptr && table.claim->data() == value.data()) return &table;
  }
  return nullptr;
}

bool LoadedTables::IsDone(const tensorflow::OpKernel& kernel, bool /*may_write*/,
                          OpKernelContext* context) {
  if (!MayWrite(kernel.def())) return false;
  const bool scatters = kernel.type_string() == kScatterOp;
  if (scatters) {
    CountRows(tensorflow::HandleFromInput(context, 0).name(), context->input(1).NumElements());
  }
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->input_dtype(i) != tensorflow::DT_RESOURCE || !context->has_input(i)) continue;
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    const auto found =
        tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, i), &variable);
    if (!found.ok()) continue;
    const Tensor* const ids = scatters && i == 0 ? &context->input(1) : nullptr;
    const absl::Status prepared = PrepareWrite(context, variable.get(), ids);
    if (!prepared.ok()) context->SetStatus(prepared);
  }
  return false;
}

// Prepares a write to a variable: to the rows `ids`, or to anything if it is null.
absl::Status LoadedTables::PrepareWrite(OpKernelContext* context, tensorflow::Var* variable,
                                        const Tensor* ids) {
  LoadedTable* const table = TableOf(*variable->tensor());
  if (table == nullptr) return absl::OkStatus();
  if (!table->claim->is_writable()) return Detach(context, variable);
  if (ids == nullptr) {
    table->claim->LoseContents();
  } else {
    LogRows(*ids, table->claim.get());
  }
  return absl::OkStatus();
}

void LoadedTables::CountRows(const std::string& variable, int64_t row_count) {
  for (LoadedTable& table : tables_) {
    if (table.plan.variable == variable) table.report.changed_row_count += row_count;
  }
  for (TableReport& table : unkept_) {
    if (table.variable == variable) table.changed_row_count += row_count;
  }
}

std::shared_ptr<const pjrt::TableContents> LoadedTables::ContentsOf(const Tensor& value) {
  const LoadedTable* const table = TableOf(value);
  if (table == nullptr || table->plan.contents.empty()) return nullptr;
  std::optional<std::vector<int64_t>> rows = table->claim->ChangedRows();
  if (!rows) return nullptr;
  return std::make_shared<const pjrt::TableContents>(pjrt::TableContents{
      table->plan.variable, table->plan.contents, std::move(*rows), table->plan.is_written});
}

void LoadedTables::Commit() {
  for (LoadedTable& table : tables_) {
    if (table.claim != nullptr) table.claim->Commit();
  }
}

memory::VersionTables LoadedTables::sizes() const {
  memory::VersionTables all;
  for (const LoadedTable& table : tables_) {
    all.Add(table.plan.bytes, table.plan.row_bytes, table.plan.is_written);
  }
  return all;
}

void LoadedTables::Pin() const {
  for (const LoadedTable& table : tables_) {
    if (table.claim != nullptr && table.claim->is_writable()) table.claim->Pin();
  }
}

base::Status LoadedTables::Seal(memory::TableStore* store) const {
  std::vector<const memory::TableClaim*> claims;
  for (const LoadedTable& table : tables_) {
    if (table.claim != nullptr) claims.push_back(table.claim.get());
  }
  return store->Seal(claims);
}

void LoadedTables::EndClaims() {
  for (LoadedTable& table : tables_) table.claim.reset();
}

std::vector<size_t> LoadedTables::HeldBytes() const {
  std::vector<size_t> held;
  for (const LoadedTable& table : tables_) {
    if (!table.hold.expired()) held.push_back(table.plan.bytes);
  }
  return held;
}

std::vector<TableReport> LoadedTables::Reports() const {
  std::vector<TableReport> reports;
  for (const LoadedTable& table : tables_) reports.push_back(table.report);
  reports.insert(reports.end(), unkept_.begin(), unkept_.end());
  return reports;
}

}  // namespace millpond::tf
