# bash completion for apptainer and singularity, links to berth: that of berth apptainer.

declare -F _berth >/dev/null || . "${BASH_SOURCE[0]%/*}/berth"

_berth_apptainer() {
	COMP_WORDS=(berth apptainer "${COMP_WORDS[@]:1}")
	((COMP_CWORD++))
	_berth
}

complete -F _berth_apptainer apptainer singularity
