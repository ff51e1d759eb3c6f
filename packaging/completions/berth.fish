# berth fish shell completion

function __fish_berth_no_subcommand --description 'Test if there has been any subcommand yet'
    for i in (commandline -opc)
        if contains -- $i run alloc gpus leases release discover repair
            return 1
        end
    end
    return 0
end

complete -c berth -n '__fish_berth_no_subcommand' -l config -r -d 'read the configuration from FILE'
complete -c berth -n '__fish_berth_no_subcommand' -f -l help -s h -d 'show help'
complete -c berth -n '__fish_berth_no_subcommand' -f -l version -s v -d 'print the version'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l help -s h -d 'show help'
complete -r -c berth -n '__fish_berth_no_subcommand' -a 'run' -d 'run a container with GPUs of its own'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l gpus -r -d 'lease what REQUEST says'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l env -s e -r -d 'set NAME=VALUE, or pass NAME on; can be repeated'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l volume -s v -r -d 'bind SRC:DST[:ro]; can be repeated'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l workdir -s w -r -d 'start in DIR'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l user -s u -r -d 'run as USER[:GROUP], names of the image or numbers'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l tty -s t -d 'give the container a terminal'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l interactive -s i -d 'connect standard input'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l name -r -d 'NAME for people, also the hostname'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l memory -s m -r -d 'at most SIZE of memory, such as 512m or 64g'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l cpus -r -d 'at most the time of N CPUs, such as 1.5'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l shm-size -r -d 'SIZE of /dev/shm (default: half of the memory)'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l network -r -d 'NETWORK is host or none'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l read-only -d 'let nothing be written to the root file system'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l rw -d 'write to the image itself, which must be a directory'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l wait -d 'wait in line until the devices are free; --wait=DURATION: for so long at most'
complete -c berth -n '__fish_seen_subcommand_from run' -f -l no-wait -d 'fail at once when they are busy (the default)'
complete -c berth -n '__fish_seen_subcommand_from alloc' -f -l help -s h -d 'show help'
complete -r -c berth -n '__fish_berth_no_subcommand' -a 'alloc' -d 'hold a lease around any command'
complete -c berth -n '__fish_seen_subcommand_from alloc' -f -l wait -d 'wait in line until the devices are free; --wait=DURATION: for so long at most'
complete -c berth -n '__fish_seen_subcommand_from alloc' -f -l no-wait -d 'fail at once when they are busy (the default)'
complete -c berth -n '__fish_seen_subcommand_from gpus' -f -l help -s h -d 'show help'
complete -r -c berth -n '__fish_berth_no_subcommand' -a 'gpus' -d 'show the node\'s GPUs and slices, their state and who holds them'
complete -c berth -n '__fish_seen_subcommand_from gpus' -f -l json -d 'print JSON'
complete -c berth -n '__fish_seen_subcommand_from leases' -f -l help -s h -d 'show help'
complete -r -c berth -n '__fish_berth_no_subcommand' -a 'leases' -d 'show who holds what, and who waits'
complete -c berth -n '__fish_seen_subcommand_from leases' -f -l json -d 'print JSON'
complete -c berth -n '__fish_seen_subcommand_from release' -f -l help -s h -d 'show help'
complete -r -c berth -n '__fish_berth_no_subcommand' -a 'release' -d 'end a lease whose holder should not have it any more'
complete -c berth -n '__fish_seen_subcommand_from release' -f -l force -s f -d 'end the holder\'s processes without asking'
complete -c berth -n '__fish_seen_subcommand_from discover' -f -l help -s h -d 'show help'
complete -r -c berth -n '__fish_berth_no_subcommand' -a 'discover' -d 'read what the node has, and prepare it for container starts'
complete -c berth -n '__fish_seen_subcommand_from discover' -f -l if-stale -d 'do nothing if the snapshot still fits the machine'
complete -c berth -n '__fish_seen_subcommand_from discover' -f -l json -d 'print the inventory as JSON'
complete -c berth -n '__fish_seen_subcommand_from discover' -f -l quiet -s q -d 'print nothing'
complete -c berth -n '__fish_seen_subcommand_from repair' -f -l help -s h -d 'show help'
complete -r -c berth -n '__fish_berth_no_subcommand' -a 'repair' -d 'rebuild the ledger from what runs, when it can\'t be trusted any more'
