#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "native/servable/loaded_version.h"
#include "native/servable/servable.h"

namespace millpond::servable {

// A SavedModel that a TensorFlow session runs on the CPU. `loaded` has been through all steps of
// its load. A co-owner of `loaded` may free it once the entry is destroyed.
class SavedModelServable final : public Servable {
 public:
  SavedModelServable(ServableId id, std::shared_ptr<LoadedVersion> loaded)
      : id_(std::move(id)), loaded_(std::move(loaded)), model_(loaded_->model()) {}

  const ServableId& id() const override { return id_; }
  const tf::SignatureMap& signatures() const override { return model_.signatures(); }
  const std::string& signature_def_map() const override { return model_.signature_def_map(); }
  base::Status Prepare(const tf::Signature& signature,
                       const tf::OutputSet& outputs) const override {
    return model_.Prepare(signature, outputs);
  }
  base::Status Run(const tf::Signature& signature, const tf::OutputSet& outputs,
                   const tf::RunContext& run, const tf::TensorList& inputs,
                   tf::TensorList* result) const override {
    return model_.Run(signature, outputs, run, inputs, result);
  }
  std::optional<base::Status> RunTogether(const std::vector<const tf::Signature*>& signatures,
                                          const tf::RunContext& run, const tf::TensorList& inputs,
                                          std::vector<tf::TensorList>* results) const override {
    const tf::JointRunner* const joint = model_.FindOrMakeJoint(signatures);
    if (joint == nullptr) return std::nullopt;
    return model_.RunJoint(*joint, signatures, run, inputs, results);
  }
  base::Status RunSession(const tf::SessionRunNames& names, const tf::RunContext& run,
                          const tf::TensorList& fed, tf::TensorList* fetched) const override {
    return model_.RunSession(names, run, fed, fetched);
  }

 private:
  const ServableId id_;
  const std::shared_ptr<LoadedVersion> loaded_;
  const tf::SavedModel& model_;
};

}  // namespace millpond::servable
