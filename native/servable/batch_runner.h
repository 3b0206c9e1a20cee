#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/servable/batched_signature.h"
#include "native/servable/prepared_run.h"
#include "native/tensor/tensor_rows.h"

namespace millpond::servable {

// The results of a run, one list for each signature.
using RunResults = std::vector<tensor::TensorList>;

// A request of a batch.
struct BatchMember {
  PreparedRun* run;
  int64_t rows;
  int64_t joined_ns;
};

// Rows that were copied into new tensors. They are counted in the budget as long as they exist, but
// in no request's share, because the requests of a batch end at different times.
struct JoinedRows {
  base::ByteBudget::Share share;
  tensor::TensorList tensors;
};

// Joins rows as tensor::JoinRows does, on behalf of a run with `context`.
base::Status JoinCountedRows(const std::vector<tensor::RowRange>& parts,
                             const tensor::RowLayout& layout, int64_t rows,
                             const tensor::RunContext& context, JoinedRows* joined);

// Returns the context of a run that ends before it changes a variable: a run that several requests
// share, or that only shows what a model does.
tensor::RunContext WithoutWriting(const tensor::RunContext& run);

// Returns true if each tensor has `rows` rows.
bool HaveRows(const RunResults& results, int64_t rows);

// Returns the status of a request whose deadline passed before a slot was free (BatchSlots).
base::Status NoSlot();

// Computes rows for the requests of a batch, all of which do the same, and notes what the runs show
// about their signature: the cost, and whether it may be batched at all.
//
// Thread: one. Borrows all.
class BatchRunner {
 public:
  // The runs compute what `example` asks for. It is a request of the batch, and lives as long.
  BatchRunner(const Servable& inner, const BatchSettings& settings, BatchedSignature* signature,
              const PreparedRun* example)
      : inner_(inner), settings_(settings), signature_(*signature), example_(*example) {}

  const BatchSettings& settings() const { return settings_; }
  BatchedSignature& signature() const { return signature_; }

  // Computes `inputs`, and learns the cost of as many rows.
  base::Status Run(const tensor::RunContext& context, const tensor::TensorList& inputs,
                   int64_t rows, RunResults* results) const;
  // Runs a request on its own inputs, sets its results, and counts the run. The request enters
  // Phase::kRun, and then Phase::kBatch again.
  base::Status RunOnOwnInputs(const BatchMember& member) const;

  // Turns batching off if a run without writing was to change a variable: a change belongs to one
  // request, and its order counts.
  void RefuseWriting(const base::Status& ran) const;
  // Turns batching off, because an output of `rows` rows has another number of rows.
  void RefuseRowsOf(int64_t rows) const;
  // Notes the rows of a run of a batch, or of a piece of a large request.
  void RecordHot(int64_t padded_rows) const;
  // Returns the names of the outputs in result `index` of a run.
  std::vector<std::string> NamesOf(size_t index) const;

 private:
  const Servable& inner_;
  const BatchSettings& settings_;
  BatchedSignature& signature_;
  const PreparedRun& example_;
};

}  // namespace millpond::servable
