# Completion of kvcanary for bash. Made by tools/make_manual.py.
# shellcheck shell=bash
_kvcanary() {
	local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"
	local options="" files=0
	COMPREPLY=()
	if [ "$COMP_CWORD" -eq 1 ] || [ "${COMP_WORDS[1]}" = help ]; then
		mapfile -t COMPREPLY < <(compgen -W "info check stamp diff replay explain cpu cuda help --help --version" -- "$word")
		return
	fi
	case "${COMP_WORDS[1]}" in
	info)
		case "$before" in
		--as) mapfile -t COMPREPLY < <(compgen -W 'llamacpp llamacpp-seq llamacpp-ctx llamacpp-blob safetensors safetensors-kvc safetensors-mlx safetensors-vllm pages hicache vllm-fs pickle' -- "$word"); return ;;
		--heads) return ;;
		--layout) mapfile -t COMPREPLY < <(compgen -W 'split packed mla bhtd bthd htd thd btd td' -- "$word"); return ;;
		--manifest) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--tokens) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--jobs) return ;;
		esac
		options="--as --heads --layout --manifest --tokens --jobs --json --help"
		files=1 ;;
	check)
		case "$before" in
		--rope) return ;;
		--rope-from) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--side) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--from-file) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--resume) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--as) mapfile -t COMPREPLY < <(compgen -W 'llamacpp llamacpp-seq llamacpp-ctx llamacpp-blob safetensors safetensors-kvc safetensors-mlx safetensors-vllm pages hicache vllm-fs pickle' -- "$word"); return ;;
		--heads) return ;;
		--layout) mapfile -t COMPREPLY < <(compgen -W 'split packed mla bhtd bthd htd thd btd td' -- "$word"); return ;;
		--manifest) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--tokens) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--jobs) return ;;
		esac
		options="--rope --rope-from --side --beside --from-file --jsonl --resume --as --heads --layout --manifest --tokens --jobs --json --help"
		files=1 ;;
	stamp)
		case "$before" in
		--output) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--from-file) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--resume) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--as) mapfile -t COMPREPLY < <(compgen -W 'llamacpp llamacpp-seq llamacpp-ctx llamacpp-blob safetensors safetensors-kvc safetensors-mlx safetensors-vllm pages hicache vllm-fs pickle' -- "$word"); return ;;
		--heads) return ;;
		--layout) mapfile -t COMPREPLY < <(compgen -W 'split packed mla bhtd bthd htd thd btd td' -- "$word"); return ;;
		--manifest) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--tokens) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--jobs) return ;;
		esac
		options="--output --beside --from-file --jsonl --resume --as --heads --layout --manifest --tokens --jobs --json --help"
		files=1 ;;
	diff)
		case "$before" in
		--rope) return ;;
		--rope-from) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--html) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--as) mapfile -t COMPREPLY < <(compgen -W 'llamacpp llamacpp-seq llamacpp-ctx llamacpp-blob safetensors safetensors-kvc safetensors-mlx safetensors-vllm pages hicache vllm-fs pickle' -- "$word"); return ;;
		--heads) return ;;
		--layout) mapfile -t COMPREPLY < <(compgen -W 'split packed mla bhtd bthd htd thd btd td' -- "$word"); return ;;
		--manifest) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--tokens) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		--jobs) return ;;
		esac
		options="--rope --rope-from --html --as --heads --layout --manifest --tokens --jobs --json --help"
		files=1 ;;
	replay)
		case "$before" in
		--requests) return ;;
		--speed) return ;;
		--block-tokens) return ;;
		--abort-every) return ;;
		--layers) return ;;
		--heads) return ;;
		--query-heads) return ;;
		--head-dim) return ;;
		--dtype) return ;;
		--pool-slots) return ;;
		--page-size) return ;;
		--chunk) return ;;
		--batch) return ;;
		--move-interval) return ;;
		--canary) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$word"); return ;;
		--verify) return ;;
		--verify-budget) return ;;
		--sweep-interval) return ;;
		--release-check) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$word"); return ;;
		--fingerprint) return ;;
		--stamping) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$word"); return ;;
		--expected-tokens) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$word"); return ;;
		--input-check) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$word"); return ;;
		--finite) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$word"); return ;;
		--fault) return ;;
		--injections) return ;;
		--seed) return ;;
		--threads) return ;;
		--html) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
		esac
		options="--requests --speed --block-tokens --abort-every --layers --heads --query-heads --head-dim --dtype --pool-slots --page-size --chunk --batch --move-interval --canary --verify --verify-budget --sweep-interval --release-check --fingerprint --stamping --expected-tokens --input-check --finite --fault --injections --list-faults --seed --threads --json --html --help"
		files=1 ;;
	explain)
		case "$before" in
		--width) return ;;
		esac
		options="--list --json --width --help"
		files=0 ;;
	cpu)
		options="--json --help"
		files=0 ;;
	cuda)
		options="--json --help"
		files=0 ;;
	esac
	if [ "${word#-}" != "$word" ]; then
		mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
	elif [ "$files" -eq 1 ]; then
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
	fi
}
complete -o filenames -F _kvcanary kvcanary
