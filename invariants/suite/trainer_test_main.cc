#include "invariants/suite/sharded_trainer.h"
#include "invariants/suite/trainer_programs.h"

int main(int argc, char** argv) {
  return shardproof::TrainerTestMain(argc, argv, shardproof::MakeTrainerUnderTest());
}
