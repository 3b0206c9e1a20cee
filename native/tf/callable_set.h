#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>

#include "native/tf/callable.h"
#include "native/tf/signature_runner.h"

namespace millpond::tf {

// The callables of one signature: one for all outputs, and those for other sets of outputs that
// were prepared.
//
// A run for a set without a callable takes the one for all outputs and picks: so no request waits
// for a callable to be made, whatever outputs it asks for. One case must: where that run fails, an
// output that nobody asked for may be why, and then the answer is that of a callable of just the
// set, made within the request.
//
// Thread: any number at once, all methods. Look-ups are wait-free: sets are only ever added.
// Lifetime: within that of the session. Cost of a run above the callable's: a compare for each
// prepared set.
class CallableSet final : public SignatureRunner {
 public:
  // A client may ask for any subset of 100 outputs, so the number that are kept is bounded: each
  // holds an executor, as large as its part of the graph.
  static constexpr size_t kPreparedSetCountMax = 64;

  // Makes the callable for all outputs. Borrows both.
  CallableSet(tensorflow::Session* session, const Signature& signature);
  ~CallableSet() override;

  const base::Status& made() const override { return all_.made(); }

  // Says why a callable for `outputs` cannot be made, RESOURCE_EXHAUSTED where there are
  // kPreparedSetCountMax of them. Call it before the version is published, and run it then:
  // from here on requests for this set use it, and its first run is slow.
  base::Status Prepare(const OutputSet& outputs) const override;

  base::Status Run(const OutputSet& outputs, const TensorList& inputs,
                   TensorList* result) const override;

  // How many sets beside that of all outputs have a callable.
  size_t prepared_set_count() const;
  bool HasRoom() const { return prepared_set_count() < kPreparedSetCountMax; }

 private:
  struct Prepared {
    Prepared(tensorflow::Session* session, const Signature& signature, const OutputSet& set)
        : outputs(set), callable(session, signature, set) {}
    const OutputSet outputs;
    const Callable callable;
  };

  // Null where there is none.
  const Callable* Find(const OutputSet& outputs) const;
  const Prepared* Keep(std::unique_ptr<Prepared>* prepared) const;
  base::Status RunWithoutTheOthers(const OutputSet& outputs, const TensorList& inputs,
                                   TensorList* result) const;

  tensorflow::Session* const session_;
  const Signature& signature_;
  const Callable all_;
  // Filled from the front, owned. A full slot stays as it is until the end.
  mutable std::array<std::atomic<const Prepared*>, kPreparedSetCountMax> prepared_{};
};

}  // namespace millpond::tf
