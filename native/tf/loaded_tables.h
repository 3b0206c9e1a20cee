#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "native/base/status.h"
#include "native/memory/table_store.h"
#include "native/pjrt/table_contents.h"
#include "native/tf/kernel_watch.h"
#include "native/tf/table_plan.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {
class Var;
}  // namespace tensorflow

namespace millpond::tf {

// The use that a load made of one table.
struct TableReport {
  std::string variable;
  size_t bytes = 0;
  size_t read_bytes = 0;          // from the checkpoint
  int64_t changed_row_count = 0;  // that the init op wrote
  std::string reason;             // why it was read; "" if it was not
};

// One table of a load.
struct LoadedTable {
  PlannedTable plan;
  std::unique_ptr<memory::TableClaim> claim;  // null until the claim, and after the load
  std::weak_ptr<const memory::TableHold> hold;
  bool is_taken = false;  // by the restore
  TableReport report;
};

// The tables of one version. During the load: what the restore takes, and what the init op may
// write to. After it: what the version still holds.
//
// Each version has tensor buffers of its own over a shared table. With one buffer for two versions,
// TensorFlow's gather would find a second reference, and copy the table at its first run.
//
// Thread: the loader; HeldBytes any. Owner: shared by the SavedModel and LoadedVersion.
class LoadedTables final : private KernelWatch {
 public:
  explicit LoadedTables(TablePlan plan);

  const std::vector<LoadedTable>& tables() const { return tables_; }
  // True if the tensor of the checkpoint, or a part of it, is a table.
  bool Has(const std::string& tensor_name) const;
  // True if the entry of the checkpoint's index has the bytes of a table.
  bool HasEntry(const std::string& entry_name) const;
  // The bytes of the tables that the restore reads or copies. After Claim.
  size_t BytesToFill() const;

  // The memory that the logs of replaced rows may take, if the rows that replace them have
  // `new_row_bytes` at most. An entry of the log has an id too, which several tables may share.
  size_t LogBytesMax(size_t new_row_bytes) const;
  // The tables that Claim asks for.
  std::vector<memory::TableWish> Wishes(const std::string& owner) const;
  // Returns the bytes of the tables that Claim would share with other versions.
  size_t ShareableBytes(const memory::TableStore& store, const std::string& owner) const;
  // Gets memory for all tables. Returns the bytes that need no fresh memory.
  base::StatusOr<size_t> Claim(memory::TableStore* store,
                               const memory::TableStore::LoadPermit& permit,
                               const std::string& owner);

  // For the restore. Returns the table of a tensor, once. Returns null if the tensor is none, or if
  // the bytes in the checkpoint are not `contents`, because the file was replaced since the plan.
  LoadedTable* Take(const RestoredTensor& tensor, const std::string& contents);
  // Returns the table as a tensor with a buffer of its own.
  static tensorflow::Tensor MakeTensor(const LoadedTable& table, tensorflow::DataType dtype,
                                       const tensorflow::TensorShape& shape);

  // The watch for the run of the init op. It logs the rows before they are replaced. A table that
  // others may read is copied first, if a kernel may write to it after all.
  KernelWatch* init_watch() { return this; }

  // Returns what is known of a variable's value, for an accelerator that may have the same bytes.
  // Null if it is no table. After the init op.
  std::shared_ptr<const pjrt::TableContents> ContentsOf(const tensorflow::Tensor& value);

  // Ends a load that has succeeded: other loads may use the tables from now on.
  void Commit();
  // The sizes of the tables, for TableStore::Expect.
  memory::VersionTables sizes() const;
  // Pins the tables that this load may write to, for an accelerator. A shared table was pinned by
  // the load that wrote it.
  void Pin() const;
  // Makes the tables read-only.
  base::Status Seal(memory::TableStore* store) const;
  // Lets go of the tables. The tensors that are left hold theirs.
  void EndClaims();
  // The sizes of the tables that are held after EndClaims, one number for each.
  std::vector<size_t> HeldBytes() const;

  std::vector<TableReport> Reports() const;

 private:
  bool IsDone(const tensorflow::OpKernel& kernel, bool may_write,
              tensorflow::OpKernelContext* context) override;
  static memory::TableWish WishFor(const LoadedTable& table, const std::string& owner);
  LoadedTable* TableOf(const tensorflow::Tensor& value);

  absl::Status PrepareWrite(tensorflow::OpKernelContext* context, tensorflow::Var* variable,
                            const tensorflow::Tensor* ids);
  void CountRows(const std::string& variable, int64_t row_count);

  std::vector<LoadedTable> tables_;
  std::vector<TableReport> unkept_;  // variables that are no tables
};

// Makes the restore that runs on this thread take tables from `tables` while the scope lives.
class TablesScope {
 public:
  explicit TablesScope(LoadedTables* tables) : outer_(current_) { current_ = tables; }
  ~TablesScope() { current_ = outer_; }
  TablesScope(const TablesScope&) = delete;
  TablesScope& operator=(const TablesScope&) = delete;

  // The tables of this thread's load; null if it has none.
  static LoadedTables* Current() { return current_; }

 private:
  static inline thread_local LoadedTables* current_ = nullptr;
  LoadedTables* const outer_;
};

}  // namespace millpond::tf
