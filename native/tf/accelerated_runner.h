#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/executable_cache.h"
#include "native/pjrt/row_program.h"
#include "native/pjrt/run_figures.h"
#include "native/tensor/signature.h"
#include "native/tf/host_tables.h"
#include "native/tf/loaded_tables.h"
#include "native/tf/side_measurement.h"
#include "native/tf/signature_draft.h"
#include "native/tf/signature_runner.h"
#include "native/tf/signature_split.h"
#include "native/tf/split_runner.h"

namespace tensorflow {
class MetaGraphDef;
class Session;
}  // namespace tensorflow

namespace millpond::tf {

// How a version uses accelerators.
struct AcceleratorUse {
  // One or more. Each gets a replica of the version, and each request goes to one of them.
  std::vector<std::shared_ptr<const pjrt::Accelerator>> accelerators;
  std::vector<int64_t> rows;    // the numbers of rows that programs are compiled for, from 1 on
  std::string cache_directory;  // of compiled programs; "" for none
  bool only_if_worth = true;    // leaves signatures on the CPU that are faster there
  TablePlace tables = TablePlace::kAuto;
  std::string model;  // that the memory is charged to
  int64_t version = 0;
  int64_t memory_bytes_max = 0;  // that all versions of the model may have on each; 0: all
  bool is_needed = false;        // the parameters must be there at the end of the load
  bool is_low = false;           // the model's runs have low priority
  bool tunes_later = false;      // keeps what UntunedPrograms shows
  // Pins the memory of the version's parameters, of which so many bytes are copied; none: it stays
  // as it is.
  std::function<void(int64_t bytes)> pin_parameters;
};

// The signatures of a version that run on accelerators, with their parameters there.
//
// The part of a signature that XLA cannot compile stays on the CPU (signature_split.h). If nothing
// is left that is worth the way to the accelerator (device_worth.h), all of it does, with the
// reason.
class AcceleratedPrograms {
 public:
  // Translates the signatures of `meta_graph` for `use` (signature_draft.h).
  static SignatureDrafts Draft(const AcceleratorUse& use,
                               const tensorflow::MetaGraphDef& meta_graph,
                               const tensor::SignatureMap& signatures);
  // Compiles the signatures that were `drafted`, whose variables have their values in `session`,
  // and copies the variables to the accelerators. Tables that another version has there are shared;
  // `tables` are those of this version, null for none. Adds the nodes of host parts to `session`.
  // Takes 0.2 to 1 s for each program and accelerator that is not in the cache. Returns
  // RESOURCE_EXHAUSTED if the variables are needed and do not fit there, and the plugin's errors.
  // If they are not needed, the CPU answers until they fit.
  static base::StatusOr<std::unique_ptr<AcceleratedPrograms>> Make(const AcceleratorUse& use,
                                                                   SignatureDrafts drafted,
                                                                   LoadedTables* tables,
                                                                   tensorflow::Session* session);

  // Returns the programs, as serialized xla.HloModuleProtos, that run without autotuning although
  // the cache has no autotuned ones. None unless the use `tunes_later`.
  std::vector<std::string> UntunedPrograms(const std::string& cache_directory) const;
  // Offers the autotuned programs that the cache has by now to trials (pjrt::TunedTrial), in place
  // of programs that run without autotuning. Returns the numbers of rows of those that were
  // offered. Leaves out a program that cannot be loaded, or for which there is no memory, on any of
  // the accelerators. 5 ms for each. OfferTuned, UseTuned and WithdrawTuned: one thread at a time,
  // beside requests.
  std::set<int64_t> OfferTuned(const std::string& cache_directory);
  // Makes requests use the programs of `rows` rows that were offered, and of which a trial has
  // ended well on each accelerator. Returns their number.
  int64_t UseTuned(int64_t rows);
  // Frees the programs that are still offered.
  void WithdrawTuned();

  // Where each signature runs now.
  std::vector<AcceleratedSignature> signatures() const;
  // The bytes that the parameters take on each accelerator, if they are there.
  int64_t parameter_bytes() const;
  // The uploads to each accelerator.
  std::vector<pjrt::UploadFigures> upload_figures() const;
  // The runs of each signature that has programs, on each accelerator, since the load.
  std::vector<pjrt::RunFigures> run_figures() const;
  // Makes a runner on the CPU for a signature of the session.
  using MakeRunner =
      std::function<std::unique_ptr<SignatureRunner>(const tensor::Signature& signature)>;
  // The two sides of a signature; null if there is no choice.
  MeasuredSides* SidesOf(const std::string& signature) const;
  // Returns a runner that runs `signature` on the accelerator as far as it can run there; all on
  // the CPU if it cannot. This object and `signature` must outlive it.
  std::unique_ptr<SignatureRunner> Accelerate(const tensor::Signature& signature,
                                              const MakeRunner& make_runner);

 private:
  // The programs of a signature, in the order of the accelerators.
  using Programs = std::vector<std::unique_ptr<pjrt::RowProgram>>;

  AcceleratedPrograms() = default;
  base::Status Upload(const AcceleratorUse& use, const pjrt::ExecutableCache& cache,
                      const std::vector<pjrt::HostTensor>& tensors);
  bool Offer(const pjrt::ExecutableCache& cache, const Programs& programs, int64_t rows,
             const std::string& hlo) const;
  void NoteTuned(const std::string& signature, int64_t rows);

  std::vector<std::shared_ptr<pjrt::DeviceParameters>> parameters_;  // of each accelerator
  std::map<std::string, Programs, std::less<>> programs_;
  std::map<std::string, SignatureSplit, std::less<>> splits_;  // of the programs
  // The sides of the programs, unless all their runs are for the accelerator.
  std::map<std::string, std::unique_ptr<MeasuredSides>, std::less<>> sides_;
  // The programs without autotuning, by signature and rows; see `tunes_later`. Guarded by
  // `tuning_`, as what has changed in `signatures_`.
  std::map<std::string, std::map<int64_t, std::string>, std::less<>> untuned_;
  std::vector<AcceleratedSignature> signatures_;
  mutable std::mutex tuning_;
};

// Runs a signature on the accelerator with the shortest expected wait, of those that have its
// programs. After a failure it leaves out the accelerator, which may be gone, and the others take
// over. The CPU runs a request that has not the shapes of the signature, and gives its error. It
// also runs requests while no accelerator is left or has the parameters, requests of threads that
// give way, and requests that have waited for long while others ran. A trial (pjrt::TunedTrial)
// runs on each accelerator in turn, and returns its error.
class AcceleratedRunner final : public DeviceRunner {
 public:
  // Borrows `programs`, which are equal but for their accelerators, and `signature`.
  AcceleratedRunner(std::unique_ptr<SignatureRunner> host,
                    const std::vector<const pjrt::RowProgram*>& programs,
                    const tensor::Signature& signature);

  const base::Status& made() const override { return host_->made(); }
  base::Status MakeCallable(const tensor::OutputSet& outputs) const override {
    return host_->MakeCallable(outputs);
  }
  base::Status RunInTurn(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                         tensor::TensorList* result, int64_t* wait_ns) const override;
  bool MayRun(std::optional<int64_t> rows) const override;
  bool IsThere() const override;
  // Counts it with those of the first accelerator.
  void CountCpuRun(pjrt::CpuReason reason) const override {
    replicas_[0]->program.counts().CountCpuRun(reason);
  }

 private:
  using Copy = std::shared_ptr<const pjrt::ParameterCopy>;

  struct Replica {
    explicit Replica(const pjrt::RowProgram& its_program) : program(its_program) {}
    const pjrt::RowProgram& program;
    mutable std::atomic<bool> is_lost{false};
  };
  // A replica and its parameters, which a run has until its end; or the reason why there is none.
  struct Choice {
    const Replica* replica = nullptr;
    Copy copy;
    pjrt::CpuReason reason = pjrt::CpuReason::kLost;
  };

  bool HasProgramFor(int64_t rows) const;
  Choice Choose(size_t first) const;
  Copy PinCopy(const Replica& replica) const;
  void GiveUp(const Replica& replica, const base::Status& error) const;
  base::StatusOr<std::optional<pjrt::CpuReason>> TryThere(const tensor::OutputSet& outputs,
                                                          const tensor::TensorList& inputs,
                                                          tensor::TensorList* result,
                                                          int64_t* wait_ns) const;
  std::optional<int64_t> RowsOf(const tensor::TensorList& inputs) const;
  base::Status Try(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const;
  base::Status RunThere(const Choice& choice, int64_t rows, const tensor::OutputSet& outputs,
                        const tensor::TensorList& inputs, tensor::TensorList* result,
                        int64_t* wait_ns) const;

  const std::unique_ptr<SignatureRunner> host_;
  std::vector<std::unique_ptr<const Replica>> replicas_;  // one or more
  const tensor::Signature& signature_;
  mutable std::atomic<size_t> next_first_{0};  // the replica at which the next choice begins
};

}  // namespace millpond::tf
