#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "native/base/crash_page.h"
#include "native/servable/servable.h"
#include "native/servable/session.h"
#include "native/tf/loaded_version.h"

namespace millpond::tf {

// A SavedModel that a TensorFlow session runs on the CPU. `loaded` has been through all steps of
// its load. A co-owner of `loaded` may free it once the entry is destroyed.
class SavedModelServable final : public servable::Servable, private servable::Session {
 public:
  SavedModelServable(servable::ServableId id, std::shared_ptr<LoadedVersion> loaded)
      : id_(std::move(id)),
        loaded_(std::move(loaded)),
        model_(loaded_->model()),
        crash_row_(id_.name, id_.version) {}

  const servable::ServableId& id() const override { return id_; }
  const tensor::SignatureMap& signatures() const override { return model_.signatures(); }
  const std::string& signature_def_map() const override { return model_.signature_def_map(); }
  base::Status MakeCallable(const tensor::Signature& signature,
                            const tensor::OutputSet& outputs) const override {
    return model_.MakeCallable(signature, outputs);
  }
  base::Status Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                   const tensor::RunContext& run, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override {
    const auto running = base::CrashScope::Running(crash_row_);
    return model_.Run(signature, outputs, run, inputs, result);
  }
  std::optional<base::Status> RunTogether(const std::vector<const tensor::Signature*>& signatures,
                                          const tensor::RunContext& run,
                                          const tensor::TensorList& inputs,
                                          std::vector<tensor::TensorList>* results) const override {
    const auto running = base::CrashScope::Running(crash_row_);
    const JointRunner* const joint = model_.FindOrMakeJoint(signatures);
    if (joint == nullptr) return std::nullopt;
    return model_.RunJoint(*joint, signatures, run, inputs, results);
  }
  bool MayChangeAnswers() const override { return model_.MayChangeAnswers(); }
  bool CompilesEachShape() const override { return model_.CompilesEachShape(); }
  const servable::Session* session() const override { return this; }

 private:
  base::Status RunSession(const servable::SessionRunNames& names, const tensor::RunContext& run,
                          const tensor::TensorList& fed,
                          tensor::TensorList* fetched) const override {
    const auto running = base::CrashScope::Running(crash_row_);
    return model_.RunSession(names, run, fed, fetched);
  }

  const servable::ServableId id_;
  const std::shared_ptr<LoadedVersion> loaded_;
  const SavedModel& model_;
  const base::CrashRow crash_row_;
};

}  // namespace millpond::tf
