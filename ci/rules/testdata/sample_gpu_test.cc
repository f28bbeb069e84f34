// What a gpu_test is made of; only its facts are looked at.
#include <cstdlib>

int main() { return std::getenv("SHARDPROOF_GPUS") == nullptr; }
